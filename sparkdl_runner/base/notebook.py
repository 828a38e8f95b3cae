"""Whether this process is a notebook's kernel, and what such a one shows beside text."""

from __future__ import annotations

import sys
from typing import Any


def in_notebook() -> bool:
    """Whether this process runs a notebook's cells."""
    if "dbruntime" in sys.modules:
        return True
    # Spark 4 imports ipykernel by itself; only in a kernel is there a shell that has one.
    return hasattr(ipython_shell(), "kernel")


def ipython_shell() -> Any:
    """IPython's shell of this process; None if IPython does not run here."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def show_in_cell(content: dict[str, Any], **how: Any) -> Any:
    """Shows something in the cell that runs.

    Args:
        content: The same thing by MIME type, as ``IPython.display.display(raw=True)`` takes it.
        **how: More for ``display``.

    Returns:
        Its handle, whose ``update`` shows something else in its place, where ``how`` asks for one.
    """
    from IPython.display import display

    return display(content, raw=True, **how)  # type: ignore[no-untyped-call]

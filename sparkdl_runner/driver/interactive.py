"""Whether a person is at work in this process: in a notebook, or in Python's own shell."""

from __future__ import annotations

import sys


def is_interactive() -> bool:
    """Whether lines are typed or cells are run here."""
    if hasattr(sys, "ps1") or sys.flags.interactive or "dbruntime" in sys.modules:
        return True
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)() is not None

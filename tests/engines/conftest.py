"""Where the engines' programs are, which are too large for this repository: the folder ENGINES."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINES = Path(os.environ.get("ENGINES", ROOT.parent / "shared" / "engines")).absolute()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests of an engine whose module says in ``why_not(ENGINES)`` what is missing."""
    reasons: dict[Path, str | None] = {}
    for item in items:
        why_not = getattr(getattr(item, "module", None), "why_not", None)
        if item.path.parent == Path(__file__).parent and why_not is not None:
            if item.path not in reasons:
                reasons[item.path] = why_not(ENGINES)
            if reason := reasons[item.path]:
                item.add_marker(pytest.mark.skip(reason=reason))

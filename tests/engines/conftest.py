"""Tests of an engine whose programs are not there are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines import ENGINES


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

"""A plugin of pytest: tells coverage which test runs, and writes down how each one went.

Processes that a test starts know its name from ``PYTEST_CURRENT_TEST``, which coverage's
configuration reads there.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import coverage
import pytest

_seconds: defaultdict[str, float] = defaultdict(float)
_failed: set[str] = set()
_skipped: set[str] = set()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Lines that run from here on are this test's."""
    if (measured := coverage.Coverage.current()) is not None:
        measured.switch_context(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds up a test's set-up, call and teardown."""
    _seconds[report.nodeid] += report.duration
    if report.failed:
        _failed.add(report.nodeid)
    elif report.skipped:
        _skipped.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Writes it down. Only a test that passes can see a mutant."""
    passed = {test: _seconds[test] for test in _seconds.keys() - _failed - _skipped}
    found = {"seconds": passed, "failed": sorted(_failed)}
    Path(os.environ["MUTANTS_OUTCOMES"]).write_text(json.dumps(found))

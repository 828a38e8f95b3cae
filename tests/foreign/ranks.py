"""Runs other people's tests or scripts in a process, whoever started it, and keeps how they ended.

As a module: python -m foreign.ranks FOLDER tests FILE [pytest's arguments], or
python -m foreign.ranks FOLDER script FILE [its own arguments].
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

from foreign.results import BEGUN, LEFT_OUT

FOLDER = "FOREIGN_RESULTS"
STAND_INS = str(Path(__file__).parent / "stand_ins")


def run(folder: str, kind: str, file: str, *arguments: str) -> None:
    """Runs tests or a script.

    Args:
        folder: Gets a file ``rank-K`` with a line for each test that begins and for each that has
            ended, written at once: how, a space, its name.
        kind: ``tests`` (a file for pytest) or ``script`` (a file for Python).
        file: The file.
        arguments: What else pytest or the script is given.

    Raises:
        Exception: What a script raised. Failed tests raise nothing.
    """
    os.environ[FOLDER] = folder
    # Last, so that they stand in only for what is not installed.
    sys.path.append(STAND_INS)
    if kind == "script":
        _run_script(file, *arguments)
        return
    # No settings and fixtures of ours: these tests know nothing of them.
    ours = ["-c", os.devnull, "--rootdir", str(Path(file).parent), "--noconftest"]
    shown = ["-q", "-rfE", "--tb=short", "--disable-warnings"]
    pytest.main([file, *ours, *shown, "-p", "no:cacheprovider", "-p", "foreign.ranks", *arguments])


def _run_script(file: str, *arguments: str) -> None:
    name = Path(file).name
    sys.argv = [file, *arguments]
    sys.path.insert(0, str(Path(file).parent))
    _write(BEGUN, name)
    outcome = "failed"
    try:
        runpy.run_path(file, run_name="__main__")
        outcome = "passed"
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"{name} ended with exit code {stop.code}") from None
        outcome = "passed"
    finally:
        _write(outcome, name)


def _write(how: str, name: str) -> None:
    rank = os.environ.get("RANK") or os.environ.get("HOROVOD_RANK", "0")
    with open(Path(os.environ[FOLDER], f"rank-{rank}"), "a") as results:
        results.write(f"{how} {name}\n")


def _name(nodeid: str) -> str:
    return nodeid.rpartition("/")[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what has ended in an earlier start."""
    path = Path(os.environ[FOLDER], LEFT_OUT)
    left_out = set(path.read_text().splitlines()) if path.exists() else set()
    items[:] = [item for item in items if _name(item.nodeid) not in left_out]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Writes a line where a test begins."""
    _write(BEGUN, _name(nodeid))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes a line where a test has ended, or could not begin."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        _write(report.outcome, _name(report.nodeid))


if __name__ == "__main__":
    # Ends well whatever became of tests: launchers end all ranks once one has not.
    run(*sys.argv[1:])

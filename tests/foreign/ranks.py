"""Runs a file of tests inside a rank, whoever started it, and keeps how each test ended.

As a module: python -m foreign.ranks FILE FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = "FOREIGN_RESULTS"


def run_tests(file: str, folder: str) -> None:
    """Runs the tests of a file.

    Args:
        file: The file.
        folder: Gets a file ``rank-K`` with a line for each test, written as soon as it has ended:
            how, a space, its name.
    """
    os.environ[FOLDER] = folder
    # No settings and fixtures of ours: these tests know nothing of them.
    ours = ["-c", os.devnull, "--rootdir", str(Path(file).parent), "--noconftest"]
    shown = ["-q", "-rfE", "--tb=short", "--disable-warnings"]
    pytest.main([file, *ours, *shown, "-p", "no:cacheprovider", "-p", "foreign.ranks"])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes a line where a test has ended, or could not begin."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        rank = os.environ.get("RANK") or os.environ["HOROVOD_RANK"]
        name = report.nodeid.rpartition("/")[2]
        with open(Path(os.environ[FOLDER], f"rank-{rank}"), "a") as results:
            results.write(f"{report.outcome} {name}\n")


if __name__ == "__main__":
    # Ends well whatever became of the tests: launchers end all ranks once one has not.
    run_tests(*sys.argv[1:])

"""Which processes belong to this test session."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable

import psutil

# Inherited by all that the tests start, so that another test session's workers are not ours.
MARK = f"SPARKDL_RUNNER_TESTS_{uuid.uuid4().hex}"
os.environ[MARK] = "1"


def running(word: str) -> list[psutil.Process]:
    """The session's processes that have ``word`` in their command line; orphans too."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        # To read the environments of all others would take ten times as long.
        if word in (process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error):
                if MARK in process.environ():
                    found.append(process)
    return found


def workers() -> list[psutil.Process]:
    """The session's workers (and their guards)."""
    return running("sparkdl_runner.launch.worker")


def wait_until_gone(word: str, timeout_seconds: float = 120.0) -> bool:
    """Whether no process with ``word`` is left, or soon will be."""
    deadline = time.monotonic() + timeout_seconds
    while running(word):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def still_running(processes: Iterable[psutil.Process], timeout_seconds: float = 120.0) -> list[int]:
    """The ids of those that have not ended by then. One that its parent has not yet reaped has."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        found = [one.pid for one in processes if not _has_ended(one)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

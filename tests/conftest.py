"""What holds for every test: it leaves no process, thread, socket or environment variable."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import psutil
import pytest


def _workers() -> set[int]:
    found = set()
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        command = process.info["cmdline"] or []
        if "sparkdl_runner.worker" in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(process.info["pid"])
    return found


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("sparkdl-")}


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    workers, environment = _workers(), dict(os.environ)
    yield
    deadline = time.monotonic() + 5
    while (left := _workers() - workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"worker processes left behind: {left}"
    assert not _threads()
    changed = {
        name
        for name in environment.keys() | os.environ.keys()
        if environment.get(name) != os.environ.get(name) and not name.startswith("PYTEST")
    }
    assert not changed, f"environment variables changed: {changed}"

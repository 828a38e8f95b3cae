"""What the whole system needs, or why it cannot be tested here; and nothing of it is left."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import postgres
import psutil
import pytest

import browser
import quick_java
from processes import MARK

quick_java.use()
NEEDED = {"chromium chromium-driver": browser.programs, "postgresql": postgres.programs}
# Some 9 GB are used, and what runs needs room, too.
ENOUGH_BYTES = 16 << 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips these tests where they cannot run. What tests every change is to have everything."""
    reason = None
    if os.environ.get("CI", "").lower() not in ("true", "1"):
        reason = _missing()
    if reason is not None:
        for item in items:
            if item.path == Path(__file__).with_name("test_whole_system.py"):
                item.add_marker(pytest.mark.skip(reason=reason))


def _missing() -> str | None:
    """Which programs must be installed, or None."""
    packages = [packages for packages, programs in NEEDED.items() if programs() is None]
    return f"it needs more programs: apt-get install {' '.join(packages)}" if packages else None


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory) -> Path:
    """Where pictures and logs are kept: $SPARKDL_TEST_ARTIFACTS, or with pytest's own files."""
    chosen = os.environ.get("SPARKDL_TEST_ARTIFACTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder for everything else, some gigabytes; gone at the end, as is all that was started."""
    assert _missing() is None, _missing()
    # Such as the JVM of a session that other tests in this process share.
    others = set(_started_here())
    folder = Path(tempfile.mkdtemp(prefix="sparkdl-system-", dir=_memory()))
    yield folder
    shutil.rmtree(folder)
    deadline = time.monotonic() + 120
    while left := set(_started_here()) - others:
        assert time.monotonic() < deadline, f"processes left behind: {left}"
        time.sleep(0.1)


def _memory() -> str | None:
    """A folder in memory, where there is plenty: Spark unpacks an environment three times here.

    Disks take up to minutes to forget that again.
    """
    folder = "/dev/shm"
    if not os.path.isdir(folder) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return None
    free = min(psutil.virtual_memory().available, shutil.disk_usage(folder).free)
    return folder if free > ENOUGH_BYTES else None


def _started_here() -> list[psutil.Process]:
    """The processes that this test session has started, also those whose parents are gone."""
    return [
        process
        for process in psutil.process_iter(["environ", "cmdline"])
        if MARK in (process.info["environ"] or {}) and process.status() != psutil.STATUS_ZOMBIE
    ]

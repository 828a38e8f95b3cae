"""What the processes that hold copies of checkpoints have in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.checkpoint.copies.holder import MEMORY
from sparkdl_runner.rank import restart_memory


def held(run: str, attempt: int | None = None) -> list[str]:
    """The SHA-256 of each file that a holder of a run has, of one attempt or of all."""
    names = []
    for pid, of_attempt, _ in restart_memory.holders(run):
        with suppress(OSError):  # It ends, or has just let go of one.
            for link in descriptors(pid) if attempt in (None, of_attempt) else ():
                name = os.readlink(link).removesuffix(" (deleted)")
                names.append(name.partition(MEMORY)[2])
    return sorted(filter(None, names))


def descriptors(pid: int) -> list[Path]:
    """The descriptors that a process has open."""
    return list(Path(f"/proc/{pid}/fd").iterdir())


def until(is_so: Callable[[], bool]) -> None:
    """Waits, at most for a minute."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)

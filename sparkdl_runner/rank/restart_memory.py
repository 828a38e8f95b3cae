"""Finds and ends the processes that hold memory from one attempt of a run to the next.

A rank starts its own (see ``checkpoint.copies.holder``); its agent ends it with the run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.base import processes

VARIABLE = "SPARKDL_RUNNER_RESTART_MEMORY"
"""Tells a rank the run's name, and with which process of its host the memory is to end: 0 where no
restart may follow."""
_HOLDER = "sparkdl_runner-holder"


def of_this_rank() -> tuple[str, int]:
    """The two values of ``VARIABLE``; the name is empty outside of a rank."""
    run, _, lives_with = os.environ.get(VARIABLE, " 0").rpartition(" ")
    return run, int(lives_with)


def arguments(run: str, attempt: int) -> list[str]:
    """The last arguments of a holder, by which it is found."""
    return [_HOLDER, run, str(attempt), str(os.getppid())]


def holders(run: str) -> Iterator[tuple[int, int, int]]:
    """This user's holders of a run on this host: process, attempt, and its rank's agent."""
    for pid in processes.ids():
        with suppress(OSError):  # It has ended, or is hidden.
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[-5:-1]
            if words[:2] == [_HOLDER, run] and os.stat(f"/proc/{pid}").st_uid == os.getuid():
                yield pid, int(words[2]), int(words[3])


def end_holders(run: str, *, agent: int = 0, before: int = 0) -> None:
    """Ends the holders of an agent's ranks, and those of attempts before this one."""
    for pid, attempt, of_agent in holders(run):
        if of_agent == agent or attempt < before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

"""Spare workers for a restart of the ranks that run now, which then need not import torch."""

from __future__ import annotations

import math
import os
from typing import Protocol

from sparkdl_runner.rank import restart_memory

# How long a restart may take to come, once ranks have ended for it.
RESTART_SECONDS = 30.0


class Keep(Protocol):
    """Keeps spares in this process: see ``pool.keep_spares``."""

    def __call__(self, seconds: float, *, for_restart: bool) -> None: ...


class RestartSpares:
    """Those of one attempt, in a process that holds ranks of it.

    Args:
        keep: Keeps them.
        seconds: How long a spare waits for the next call; 0 if none is wanted. Then one for a
            restart is started when its rank has failed, and not while it runs.
        may_restart: Whether there may be a restart.
        run: The run's name, if this attempt may be a restart or may be followed by one.
    """

    def __init__(self, keep: Keep, *, seconds: float, may_restart: bool, run: str = "") -> None:
        self._keep = keep
        self._seconds = seconds
        self._may_restart = may_restart
        self._run = run
        self._is_expected = False

    def memory(self, *, lives_with: int) -> dict[str, str]:
        """The variable by which ranks find what they leave to one another in memory.

        Args:
            lives_with: The process that ends with all that Spark, or the driver, has on this host.
        """
        lives_with *= self._may_restart
        return {restart_memory.VARIABLE: f"{self._run} {lives_with}"} if self._run else {}

    def rank_runs(self) -> None:
        """A rank has its work: a spare may start beside it."""
        if self._may_restart and self._seconds and not self._is_expected:
            self._keep(math.inf, for_restart=True)

    def restart_comes(self) -> None:
        """Ranks end, to be started again."""
        if self._may_restart:
            self._is_expected = True
            self._keep(RESTART_SECONDS, for_restart=True)

    def close(self) -> None:
        """The ranks have ended: leaves spares for what comes next."""
        if not self._is_expected:
            self._keep(self._seconds, for_restart=False)
            if self._run:
                restart_memory.end_holders(self._run, agent=os.getpid())

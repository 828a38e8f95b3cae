"""Spare workers for a restart of the ranks that run now, which then need not import torch."""

from __future__ import annotations

import math
from typing import Protocol

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
    """

    def __init__(self, keep: Keep, *, seconds: float, may_restart: bool) -> None:
        self._keep = keep
        self._seconds = seconds
        self._may_restart = may_restart
        self._is_expected = False

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

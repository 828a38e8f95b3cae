"""How long a process that holds ranks keeps the template that they were forked from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_runner.rank import restart_memory

# How long a restart may take to come, once ranks have ended for it.
RESTART_SECONDS = 30.0


@dataclass
class RestartSpares:
    """The template of one attempt."""

    keep: Callable[[float], None]
    """Keeps it for so many seconds: see ``pool.keep_template``."""
    seconds: float
    """How long it waits for the next call; 0 if it is not to."""
    may_restart: bool
    """Whether there may be a restart."""
    waits_for_restart: bool = False
    """Whether the template is kept for it."""
    run: str = ""
    """The run's name, if this attempt may be a restart or may be followed by one."""
    _is_expected: bool = False

    def memory(self, *, lives_with: int) -> dict[str, str]:
        """The variable by which ranks find what they leave to one another in memory.

        Args:
            lives_with: The process that ends with all that Spark, or the driver, has on this host.
        """
        lives_with *= self.may_restart
        return {restart_memory.VARIABLE: f"{self.run} {lives_with}"} if self.run else {}

    def restart_comes(self) -> None:
        """Ranks end, to be started again."""
        self._is_expected = self.may_restart

    def close(self) -> None:
        """The ranks have ended: leaves the template to what comes next."""
        waits = self._is_expected and self.waits_for_restart
        self.keep(RESTART_SECONDS if waits else self.seconds)
        if self.run and not self._is_expected:
            restart_memory.end_holders(self.run, agent=os.getpid())

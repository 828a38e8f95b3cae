"""How long a process that holds ranks keeps the template that they were forked from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    _is_expected: bool = False

    def restart_comes(self) -> None:
        """Ranks end, to be started again."""
        self._is_expected = self.may_restart

    def close(self) -> None:
        """The ranks have ended: leaves the template to what comes next."""
        self.keep(RESTART_SECONDS if self._is_expected else self.seconds)

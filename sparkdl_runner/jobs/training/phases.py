"""How long each part of a job took."""

from __future__ import annotations

import time


class Phases:
    """The wall time of a job's phases, of which each ends where the next begins."""

    def __init__(self) -> None:
        self._mark = time.monotonic()
        self.seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        """Ends the phase called ``name`` now."""
        now = time.monotonic()
        self.seconds[name] = now - self._mark
        self._mark = now

    @property
    def total(self) -> float:
        """Seconds from the start of the job to the end of the last phase."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        rows = [*self.seconds.items(), ("all", self.total)]
        return "\n".join(f"{name:<18}{seconds:>6.1f} s" for name, seconds in rows)

"""A terminal for tests, and what is seen on it."""

from __future__ import annotations

import io


class Screen(io.StringIO):
    """A terminal, or a notebook's output."""

    def isatty(self) -> bool:
        """It is one."""
        return True

    def lines(self) -> list[str]:
        """The lines that are seen: one that was written over is gone."""
        return [line.rpartition("\r")[2].rstrip() for line in self.getvalue().split("\n")]

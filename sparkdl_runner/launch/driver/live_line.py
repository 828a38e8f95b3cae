"""The line that rank 0 has begun and not ended, such as its progress bar, shown while it changes.

On a terminal it is below what ranks print, and below other bars. In a notebook it has an output of
its own in the cell: there text has one place to be written over, and a bar may be in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sparkdl_runner.base import shown_text
from sparkdl_runner.base.notebook import in_notebook, show_in_cell
from sparkdl_runner.rank.world import World


class LiveLine:
    """One such line. A log file or a pipe gets none: there, the line comes once it has ended."""

    def __init__(self) -> None:
        self._drawn: _OnTerminal | _InCell | None = None
        self._draws = _way_to_draw()

    def show(self, world: World, text: str) -> None:
        """Draws it as it is now; without text there is none. Never raises, as ``write_lines``."""
        if self._draws is None:
            return
        try:
            if text:
                self._drawn = self._drawn or self._draws()
                self._drawn.draw(f"[rank {world.rank}] {shown_text.line(text, colours=True)}")
            else:
                self.erase()
        except Exception:
            self._draws = None  # The terminal is gone, or the notebook has no such outputs.

    def erase(self) -> None:
        """Leaves nothing of it."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            with suppress(Exception):
                drawn.erase()


def _way_to_draw() -> Callable[[], _OnTerminal | _InCell] | None:
    if in_notebook():
        return _InCell
    try:
        return _OnTerminal if sys.stdout.isatty() else None
    except (AttributeError, ValueError):  # There is no standard output, or it is closed.
        return None


class _OnTerminal:
    """A bar of tqdm's that is all text: it makes room for lines above it, and for other bars."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._bar = tqdm(bar_format="{desc}", leave=False, file=sys.stdout)

    def draw(self, text: str) -> None:
        """A line that is wrapped could not be drawn over: so it is cut at the terminal's width."""
        from tqdm.utils import disp_trim

        self._bar.set_description_str(disp_trim(text, _columns() - 1))

    def erase(self) -> None:
        self._bar.close()


class _InCell:
    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, text: str) -> None:
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = show_in_cell(content, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def erase(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80

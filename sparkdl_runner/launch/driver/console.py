"""The driver's console while ranks run."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TextIO

from sparkdl_runner.launch.wire.rank_lines import write_lines
from sparkdl_runner.rank.world import World


class Console:
    """Shows what ranks print, say and complain of.

    Args:
        show_output: Whether printed lines are shown, or only ``log_to_driver`` messages.
    """

    def __init__(self, *, show_output: bool) -> None:
        self._show_output = show_output

    def output(self, world: World, lines: list[str]) -> None:
        """Shows lines that a rank printed."""
        if self._show_output:
            _write(sys.stdout, world, lines)

    def message(self, world: World, text: str) -> None:
        """Shows a ``log_to_driver`` message."""
        _write(sys.stdout, world, [text])

    def problem(self, world: World, text: str) -> None:
        """Shows what is wrong with what a rank reported."""
        _write(sys.stderr, world, [text])


def _write(stream: TextIO, world: World, lines: list[str]) -> None:
    """Writes lines above a progress bar, if one is shown."""
    tqdm = sys.modules.get("tqdm")
    with nullcontext() if tqdm is None else tqdm.tqdm.external_write_mode(file=stream):
        write_lines(stream, world, lines)

"""The driver's console while ranks run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TextIO

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.wire.sink import Sink, write_lines
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World


class Console(Sink):
    """Prints on the driver what ranks say, and passes on what they report.

    Args:
        show_output: Whether printed lines are shown, or only ``log_to_driver`` messages.
        reports: Who takes what ranks tell of their training.
    """

    def __init__(self, *, show_output: bool, reports: Sequence[Reports]) -> None:
        self._show_output = show_output
        self._reports = reports
        self._has_complained = False

    def output(self, world: World, lines: list[str]) -> None:
        """Shows lines, each with its rank."""
        if self._show_output:
            _write(sys.stdout, world, lines)

    def message(self, world: World, text: str) -> None:
        """Shows a ``log_to_driver`` message."""
        _write(sys.stdout, world, [text])

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """Shows what is wrong, and passes the report on."""
        for problem in report["problems"]:
            _write(sys.stderr, world, [problem])
        self._pass_on(lambda one: one.progress(world, report))

    def unsent(self, world: World, count: int) -> None:
        """Passes it on."""
        self._pass_on(lambda one: one.unsent(world, count))

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """Passes them on."""
        self._pass_on(lambda one: one.host_metrics(world, values))

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """Passes it on."""
        self._pass_on(lambda one: one.file_part(world, name, data, is_first=is_first))

    def _pass_on(self, give: Callable[[Reports], None]) -> None:
        """Passes a report to all receivers. Their errors must not end a training."""
        for one in self._reports:
            try:
                give(one)
            except Exception as error:
                if not self._has_complained:
                    self._has_complained = True
                    tell(f"a report of the ranks was not understood: {error!r:.300}")


def _write(stream: TextIO, world: World, lines: list[str]) -> None:
    """Writes lines above a progress bar, if one is shown."""
    tqdm = sys.modules.get("tqdm")
    with nullcontext() if tqdm is None else tqdm.tqdm.external_write_mode(file=stream):
        write_lines(stream, world, lines)

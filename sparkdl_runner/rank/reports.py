"""How the driver passes on what ranks report, to be shown or kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.rank.world import World


class Reports:
    """Receives what ranks report. Its methods must neither raise nor block for long."""

    def begin(self, cancel: Callable[[World, str], None]) -> None:
        """Is told, before ranks start, how all of them can be ended.

        Args:
            cancel: Takes the rank whose report gave the reason, and the reason. The run then
                raises a ``RunCancelledError`` with it. Returns at once; any thread may call it.
        """

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """Takes a rank's report: see ``tracking.rank.recorder``."""

    def unsent(self, world: World, count: int) -> None:
        """Is told how many entries a rank had logged that were lost, as it was ended first."""

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """Takes the metrics of a host, from one of its ranks, every ten seconds."""

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """Takes the next part of a file that a rank leaves, to be kept with the run."""


class AllReports(Reports):
    """Passes on what ranks report to several. Their errors must not end a training."""

    def __init__(self, each: Sequence[Reports]) -> None:
        self._each = each
        self._has_complained = False

    def begin(self, cancel: Callable[[World, str], None]) -> None:
        """See ``Reports.begin``."""
        for one in self._each:
            one.begin(cancel)

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        self._pass_on(lambda one: one.progress(world, report))

    def unsent(self, world: World, count: int) -> None:
        """See ``Reports.unsent``."""
        self._pass_on(lambda one: one.unsent(world, count))

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """See ``Reports.host_metrics``."""
        self._pass_on(lambda one: one.host_metrics(world, values))

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """See ``Reports.file_part``."""
        self._pass_on(lambda one: one.file_part(world, name, data, is_first=is_first))

    def _pass_on(self, give: Callable[[Reports], None]) -> None:
        for one in self._each:
            try:
                give(one)
            except Exception as error:
                if not self._has_complained:
                    self._has_complained = True
                    tell(f"a report of the ranks was not understood: {error!r:.300}")

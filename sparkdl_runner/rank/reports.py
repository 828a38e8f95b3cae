"""How the driver passes on what ranks report, to be shown or kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkdl_runner.rank.world import World


class Reports:
    """Receives what ranks report. Its methods must not block for long."""

    def begin(self, cancel: Callable[[World, str], None]) -> None:
        """Is told, before ranks start, how all of them can be ended.

        Args:
            cancel: Takes the rank whose report gave the reason, and the reason. The run then
                raises a ``RunCancelledError`` with it. Returns at once; any thread may call it.
        """

    def begin_attempt(self, attempt: int) -> None:
        """Is told the number of the attempt whose ranks are about to start."""

    def end_attempt(self, error: BaseException | None, growth: str = "") -> None:
        """Is told how the ranks ended: by an error, for a growth (its reason), or by returning."""

    def slow_ranks(self, text: str) -> None:
        """Is told which ranks the others wait for from now on."""

    def preflight(self, report: dict[str, Any]) -> None:
        """Takes what ranks have measured before a training: see ``launch.driver.preflight``."""

    def printed(self, world: World, lines: list[str]) -> bool:
        """Takes lines that a rank printed.

        Returns:
            Whether they are shown here, and so not on the driver's console.
        """
        return False

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """Takes a rank's report: see ``tracking.rank.recorder``."""

    def logged(self, world: World, entries: list[Any]) -> None:
        """Takes the metrics, parameters and tags of a report: see ``tracking.entries``."""

    def unsent(self, world: World, count: int) -> None:
        """Is told how many entries a rank had logged that were lost, as it was ended first."""

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """Takes the metrics of a host, from one of its ranks, every ten seconds."""

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """Takes the next part of a file that a rank leaves, to be kept with the run."""

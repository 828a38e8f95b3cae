"""What ranks tell of their training, as whoever shows or keeps it takes it on the driver."""

from __future__ import annotations

from typing import Any

from sparkdl_runner.world import World


class Reports:
    """Takes what ranks tell of their training. Must neither raise nor block for long."""

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """Takes a rank's report: see ``tracking.rank.recorder``."""

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """Takes a look at a host, from one of its ranks, every ten seconds."""

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """Takes the next part of a file that a rank leaves, to be kept with the run."""

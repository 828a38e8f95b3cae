"""Where a rank's words go while it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sparkdl_runner.outcome import Outcome
from sparkdl_runner.world import World


class Sink(ABC):
    """Where a worker's words go while it runs. Must never block for long."""

    @abstractmethod
    def output(self, world: World, lines: list[str]) -> None:
        """Takes lines that the rank printed."""

    @abstractmethod
    def message(self, world: World, text: str) -> None:
        """Takes what the rank sent with ``log_to_driver``."""

    @abstractmethod
    def failed(self, outcome: Outcome) -> None:
        """Takes the news that the rank has failed or died, as soon as it is known."""

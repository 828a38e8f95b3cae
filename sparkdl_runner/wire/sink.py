"""Where a rank's words go while it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TextIO

from sparkdl_runner.hooks.reports import Reports
from sparkdl_runner.wire.outcome import Outcome
from sparkdl_runner.wire.vital_signs import VitalSigns
from sparkdl_runner.world import World


class Sink(Reports, ABC):
    """Where a worker's words go while it runs. Must neither raise nor block for long."""

    @abstractmethod
    def output(self, world: World, lines: list[str]) -> None:
        """Takes lines that the rank printed."""

    @abstractmethod
    def message(self, world: World, text: str) -> None:
        """Takes what the rank sent with ``log_to_driver``."""

    @abstractmethod
    def failed(self, outcome: Outcome) -> None:
        """Takes the news that the rank has failed or died, as soon as it is known."""

    def vital_signs(self, world: World, signs: VitalSigns) -> None:
        """Takes a look at the rank's process, one every second."""

    def loader_plan(self, world: World, plan: dict[str, Any]) -> None:
        """Takes how the rank is about to read its data: see ``loader_plans``."""


def write_lines(stream: TextIO, world: World, lines: list[str]) -> None:
    """Writes lines, each with its rank, in one call so that ranks do not run into each other.

    It does not raise: a closed pipe or a terminal that lacks a character must not end a training.
    """
    text = "".join(f"[rank {world.rank}] {line}\n" for line in lines)
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = getattr(stream, "encoding", None) or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        pass

"""Interfaces of the receivers of running ranks' messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, TextIO

from sparkdl_runner.base import shown_text
from sparkdl_runner.launch.wire.messages import (
    Failed,
    FilePart,
    HostMetrics,
    LoaderPlan,
    Message,
    Output,
    PlainValue,
    Progress,
    Text,
    Unsent,
    ValuePart,
    ValueSent,
    VitalSigns,
)
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World


class Receiver(Protocol):
    """Takes messages, here or on another host."""

    def take(self, world: World, message: Message) -> None:
        """Takes a message of a rank. Must neither raise nor block for long."""


class Sink(Reports, ABC):
    """Takes each kind of message by a method. None must raise, or block for long."""

    def take(self, world: World, message: Message) -> None:
        """Hands a message to its method; see ``Receiver``."""
        match message:
            case Output(lines):
                self.output(world, lines)
            case Text(text):
                self.message(world, text)
            case Failed(outcome):
                self.failed(outcome)
            case VitalSigns():
                self.vital_signs(world, message)
            case Progress(report):
                self.progress(world, report)
            case LoaderPlan(plan):
                self.loader_plan(world, plan)
            case Unsent(count):
                self.unsent(world, count)
            case HostMetrics(values):
                self.host_metrics(world, values)
            case FilePart(name, data, is_first):
                self.file_part(world, name, data, is_first=is_first)
            case PlainValue(text):
                self.plain_value(world, text)
            case ValuePart(data, is_first):
                self.value_part(world, data, is_first=is_first)

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

    def plain_value(self, world: World, text: str) -> None:
        """Takes the value of a rank whose function has returned: see ``function.plain_result``."""

    def value_part(self, world: World, data: bytes, *, is_first: bool) -> None:
        """Takes the next part of a rank's pickled value."""

    def value_problem(self, world: World, sent: ValueSent) -> str | None:
        """Why a value is not kept, empty if it is; None if parts of it are still to come."""
        return "nobody here takes values"


def write_lines(stream: TextIO, world: World, lines: list[str]) -> None:
    """Writes lines, each with its rank, in one call so that ranks do not run into each other.

    It does not raise: a closed pipe or a terminal that lacks a character must not end a training.
    """
    each = (one for line in lines for one in line.removesuffix("\n").split("\n"))
    text = "".join(f"[rank {world.rank}] {shown_text.line(one, colours=True)}\n" for one in each)
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = getattr(stream, "encoding", None) or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        pass

"""The interfaces of receivers of the ranks' messages."""

from __future__ import annotations

from typing import Protocol

from sparkdl_runner.launch.wire.messages import Message, ValueSent
from sparkdl_runner.rank.world import World


class Receiver(Protocol):
    """Takes messages, here or on another host."""

    def take(self, world: World, message: Message) -> None:
        """Takes a message of a rank. Must neither raise nor block for long."""


class DriversReceiver(Receiver, Protocol):
    """Takes them on the driver, and keeps the values of ranks."""

    def value_problem(self, world: World, sent: ValueSent) -> str | None:
        """Why a value is not kept, empty if it is; None if parts of it are still to come."""

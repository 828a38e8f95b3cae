"""The values of ranks whose functions have returned, ahead of the Spark tasks that carry them.

A rank's task ends with its process. If an executor is lost before that, Spark fails the stage and
drops the values of all ranks.
"""

from __future__ import annotations

import time

from sparkdl_runner.wire.outcome import Outcome, Status
from sparkdl_runner.world import World


class ReturnedValues:
    """What ranks have sent of their values."""

    def __init__(self) -> None:
        self._parts: dict[World, list[bytes]] = {}
        self._whole: set[World] = set()

    def take(self, world: World, data: bytes, *, is_last: bool) -> None:
        """Takes the next part of a rank's packed value."""
        self._parts.setdefault(world, []).append(data)
        if is_last:
            self._whole.add(world)

    def outcomes(self, num_proc: int, loss: str) -> list[Outcome]:
        """How all ranks ended, where each has returned and its whole value is here; else empty.

        Args:
            num_proc: How many ranks there are.
            loss: What was lost, for the driver to tell.
        """
        if len(self._whole) < num_proc:
            return []
        note = f"all functions had returned before a task was lost, so their values count: {loss}"
        return [
            Outcome(
                world=world,
                status=Status.RETURNED,
                ended_at=time.time(),
                notes=() if world.rank else (note,),
                payload=b"".join(self._parts[world]),
            )
            for world in sorted(self._whole, key=lambda one: one.rank)
        ]

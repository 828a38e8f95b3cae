"""Plain values of ranks whose functions have returned, ahead of the Spark tasks that carry them.

A rank's task ends with its process. If an executor is lost before that, Spark fails the stage and
drops the values of all ranks.
"""

from __future__ import annotations

import time
from contextlib import suppress

from sparkdl_runner.wire.function import pack_plain_result
from sparkdl_runner.wire.outcome import Outcome, Status
from sparkdl_runner.world import World


class ReturnedValues:
    """The values that ranks have sent so far."""

    def __init__(self) -> None:
        self._packed: dict[World, bytes] = {}

    def take(self, world: World, text: str) -> None:
        """Keeps a rank's value, if the text is one of ``function.plain_result``."""
        with suppress(ValueError, RecursionError):
            self._packed[world] = pack_plain_result(text, world)

    def outcomes(self, num_proc: int, loss: str) -> list[Outcome]:
        """How all ranks ended, where each has returned and its value is here; else empty.

        Args:
            num_proc: How many ranks there are.
            loss: What was lost, for the driver to tell.
        """
        if len(self._packed) < num_proc:
            return []
        note = f"all functions had returned before a task was lost, so their values count: {loss}"
        return [
            Outcome(
                world=world,
                status=Status.RETURNED,
                ended_at=time.time(),
                notes=() if world.rank else (note,),
                payload=self._packed[world],
            )
            for world in sorted(self._packed, key=lambda one: one.rank)
        ]

"""The interface of a launcher: a place where ranks can run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.outcome import Outcome
from sparkdl_runner.rank.reports import Reports


class Launcher(Protocol):
    """Starts ranks in one kind of place, with a ``Gang`` of its own for each attempt.

    Its constructor checks all that can be checked before ranks start, and raises LaunchError.
    """

    @property
    def is_single_host(self) -> bool:
        """Whether all ranks run on the driver's host."""

    @property
    def application_id(self) -> str | None:
        """Spark's name for the application, if ranks run in one."""

    def run(
        self, attempt: AttemptSpec, reports: Sequence[Reports], stop: StopRequest
    ) -> list[Outcome]:
        """Runs all ranks once, and waits until they have ended.

        Args:
            attempt: What to run.
            reports: Who takes what ranks tell of their training.
            stop: Asks the functions to end by themselves.

        Returns:
            How each rank ended, for as many as could tell.

        Raises:
            RunnerError: They could not start, or ended and no rank said why.
        """

    def keep_out(self, ranks: Collection[int]) -> str:
        """Does without the places of some ranks of the last attempt; returns why not, if so."""

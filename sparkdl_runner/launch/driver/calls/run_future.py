"""The future of a run that goes on while its caller does other things."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from sparkdl_runner.launch.driver.calls.interruptible import wait_until_done
from sparkdl_runner.launch.driver.spark.context import is_spark_connect, running_context
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World

T = TypeVar("T")

# How long runs that this process leaves behind may take to end.
END_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far rank 0 is, from its last report."""

    step: int
    """The last step."""
    total_steps: int | None
    """How many there will be; None if that is not known."""
    epoch: int | None
    """The epoch of the step; None if the training has none."""
    metrics: dict[str, float]
    """The latest value of each metric."""


class LatestProgress(Reports):
    """Keeps how far rank 0 is."""

    latest: RunProgress | None = None

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        if world.rank == 0 and report["step"] is not None:
            self.latest = RunProgress(
                step=report["step"],
                total_steps=report["total_steps"] or None,
                epoch=report["epoch"],
                metrics=dict(report["latest"]),
            )


class RunFuture(Future[T]):
    """A run's value or error to come, with all that ``concurrent.futures.Future`` has.

    Made by ``submit``. The run ends with this process, or with its Spark session.
    """

    def __init__(self, stop: StopRequest, reports: LatestProgress) -> None:
        super().__init__()
        self._stop = stop
        self._reports = reports
        self._ending = threading.Lock()
        self._has_ended = False

    @property
    def progress(self) -> RunProgress | None:
        """How far rank 0 is; None before its first step, or without a loop that reports."""
        return self._reports.latest

    def result(self, timeout: float | None = None) -> T:
        """As a ``Future``'s; Ctrl-C ends the wait."""
        if timeout is None:
            wait_until_done([self])
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As a ``Future``'s; Ctrl-C ends the wait."""
        if timeout is None:
            wait_until_done([self])
        return super().exception(timeout)

    def running(self) -> bool:
        """Whether the run has not ended yet."""
        return not self.done()

    def cancel(self) -> bool:
        """Ends all ranks within seconds. Returns at once; ``done()`` is true when they are gone.

        ``result()`` then raises ``concurrent.futures.CancelledError``.

        Returns:
            False if the run has ended before, and was not cancelled.
        """
        with self._ending:
            if self._has_ended:
                return self.cancelled()
            self._stop.cancelled.set()
        self._stop.cancel()
        return True

    def start(self, run: Callable[[], T]) -> None:
        """Begins to run, in a thread with the caller's Spark properties."""
        kind: Callable[..., threading.Thread] = threading.Thread
        # After the end of Spark, and with Spark Connect, which may have a context for its server in
        # this process, such a thread does not start; runs on this host still do.
        if running_context() is not None and not is_spark_connect():
            from pyspark import InheritableThread

            kind = InheritableThread
        kind(target=self._end_by, args=[run], name="sparkdl-run", daemon=True).start()
        _unended.add(self)

    def _end_by(self, run: Callable[[], T]) -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = run()
        except BaseException as raised:
            error = raised
        with self._ending:
            self._has_ended = True
        # It was never marked as running, so Future.cancel() may still cancel it.
        if self._stop.cancelled.is_set():
            super().cancel()
            self.set_running_or_notify_cancel()
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(value)  # type: ignore[arg-type]


_unended: weakref.WeakSet[RunFuture[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends the runs that this process leaves behind, so that their MLflow runs are closed."""
    left = [future for future in _unended if not future.done()]
    for future in left:
        future.cancel()
    wait(left, END_SECONDS)

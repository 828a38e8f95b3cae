"""Executors that will be taken away: notices from Spark to ranks, and from ranks to Spark.

Databricks, Kubernetes and Spark's standalone workers announce the loss of a host by decommissioning
its executors. Spark then gives them no new tasks, and their slots do not count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.driver.spark.executors import executors_of

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_SECONDS = 1.0


class Decommissions:
    """Watches for executors of one job that Spark is about to lose.

    Args:
        context: The application's context.
        tag: The job's.
        tell: Called with the partitions that run there and the reason, again and again: an agent
            may be out of reach for a moment.
    """

    def __init__(
        self, context: SparkContext, tag: str, tell: Callable[[Collection[int], str], None]
    ) -> None:
        self._context = context
        self._tag = tag
        self._tell = tell
        self._told: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-decommissions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            # The session has ended; or the master is local, and has no executors.
            with suppress(Exception):
                if leaving := _decommissioned(self._context):
                    self._say(leaving)

    def _say(self, leaving: set[str]) -> None:
        for executor, partitions in executors_of(self._context, self._tag).items():
            if executor not in leaving:
                continue
            if executor not in self._told:
                self._told.add(executor)
                tell(
                    f"Spark decommissions executor {executor}: its ranks are "
                    "asked to save, and all end with that checkpoint."
                )
            self._tell(partitions, f"Spark decommissions executor {executor}")


def decommission(context: SparkContext, executors: Collection[str], reason: str) -> None:
    """Lets Spark give executors no tasks any more; what runs there goes on."""
    for executor in executors:
        with suppress(Exception):  # The executor has gone meanwhile, or the session has ended.
            jvm: Any = context._jvm
            scheduler = jvm.org.apache.spark.scheduler
            info = scheduler.ExecutorDecommissionInfo(reason, jvm.scala.Option.empty())
            # Their number is to stay, so that Spark asks for others where it can.
            context._jsc.sc().schedulerBackend().decommissionExecutor(executor, info, False, False)


def _decommissioned(context: SparkContext) -> set[str]:
    """The executors that Spark knows it will lose, and that are still there."""
    leaving = context._jsc.sc().schedulerBackend().executorsPendingDecommission()
    return set() if leaving.isEmpty() else set(leaving.keySet().mkString(",").split(","))

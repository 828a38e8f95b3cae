"""Notices about a slow start: slots that are busy, or agents that do not reach the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.driver.spark.executors import has_tasks, hosts_of, jobs_with_tasks
from sparkdl_runner.launch.driver.watch import Watch
from sparkdl_runner.launch.wire.channel import ChannelAddress

if TYPE_CHECKING:
    from pyspark import SparkContext

# Most starts are over by then, and Spark is not asked at all.
FIRST_LOOK_SECONDS = 3.0
LOOK_SECONDS = 1.0
SLOTS_SAY_SECONDS = 30.0
# How long after the start of its task an agent is late. Few need as long to start and connect.
UNREACHED_SECONDS = 8.0


class StartNotices:
    """Watches the start of one job in a thread, until all its agents have been heard.

    Args:
        context: The application's context.
        tag: The job's.
        watch: The watch over its ranks.
        driver: Where its agents connect to the driver.
        tasks_of: Gives the numbers of the Spark tasks of agents.
    """

    def __init__(
        self,
        context: SparkContext,
        tag: str,
        watch: Watch,
        driver: ChannelAddress,
        tasks_of: Callable[[Collection[int]], set[int]],
    ) -> None:
        self._context = context
        self._tag = tag
        self._watch = watch
        self._driver = f"{driver.host}:{driver.port}"
        self._tasks_of = tasks_of
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-start", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops looking."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        if self._closed.wait(FIRST_LOOK_SECONDS):
            return
        with suppress(Exception):  # The session ends meanwhile.
            self._look()

    def _look(self) -> None:
        say_at = 0.0
        # Spark starts all tasks of a barrier stage at once.
        while self._watch.unheard() and not has_tasks(self._context, self._tag):
            if time.monotonic() >= say_at:
                say_at = time.monotonic() + SLOTS_SAY_SECONDS
                self._say_what_holds_slots()
            if self._closed.wait(LOOK_SECONDS):
                return
        if not self._watch.unheard() or self._closed.wait(UNREACHED_SECONDS):
            return
        if unheard := self._watch.unheard():
            self._say_unreached(unheard)
            while self._watch.unheard():
                if self._closed.wait(LOOK_SECONDS):
                    return
            tell("all ranks have reached the driver now.")

    def _say_what_holds_slots(self) -> None:
        jobs = jobs_with_tasks(self._context, self._tag)
        others = f"Other jobs of this application use slots: {', '.join(jobs)}."
        if not jobs:
            others = "No other job of this application uses any: Spark has yet to offer them."
        until = "a slot is free."
        num_tasks = len(self._tasks_of(range(self._watch.num_proc)))
        if num_tasks > 1:
            until = f"{num_tasks} slots are free at once."
        tell(f"waiting until {until} {others}")

    def _say_unreached(self, partitions: Collection[int]) -> None:
        hosts = hosts_of(self._context, self._tag, self._tasks_of(partitions))
        many = len(partitions) > 1
        who = f"{len(partitions)} of {self._watch.num_proc} ranks {'have' if many else 'has'}"
        tell(
            f"{who} not reached the driver at {self._driver} {UNREACHED_SECONDS:g} s after Spark "
            f"started {'their tasks' if many else 'its task'} on "
            f"{', '.join(hosts) or 'executors that are gone'}. Python may be slow to start there. "
            "Else let these hosts connect to that port: open it in firewalls (RunConfig.port_range "
            "says which ports are taken), set spark.driver.host to a name of the driver that they "
            "can reach, or name a network that all have with RunConfig.network_interface. If the "
            "ranks reach one another, the run goes on without the output of those."
        )

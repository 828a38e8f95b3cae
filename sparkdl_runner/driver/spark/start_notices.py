"""Says while ranks start what they wait for: free slots, or agents that do not reach the driver."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkdl_runner.driver.spark.executors import executors_of, hosts_of, jobs_with_tasks
from sparkdl_runner.driver.watch import Watch
from sparkdl_runner.wire.channel import ChannelAddress

if TYPE_CHECKING:
    from pyspark import SparkContext

# Most starts are over by then, and Spark is not asked at all.
FIRST_LOOK_SECONDS = 3.0
LOOK_SECONDS = 1.0
SLOTS_SAY_SECONDS = 30.0
# Python starts in less on most hosts, and an agent's first connection is tried for half of it.
UNREACHED_SECONDS = 10.0


class StartNotices:
    """Looks at one job until all its agents have been heard.

    Args:
        context: The application's context.
        tag: The job's.
        watch: The watch over its ranks.
        driver: Where its agents connect to the driver.
    """

    def __init__(
        self, context: SparkContext, tag: str, watch: Watch, driver: ChannelAddress
    ) -> None:
        self._context = context
        self._tag = tag
        self._watch = watch
        self._driver = f"{driver.host}:{driver.port}"
        self._say_slots_at = 0.0
        self._started_at: dict[int, float] = {}
        """When the task of each partition was first seen to run."""
        self._told: set[int] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-start", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops looking."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        seconds = FIRST_LOOK_SECONDS
        while not self._closed.wait(seconds) and (unheard := self._watch.unheard()):
            with suppress(Exception):  # The session ends meanwhile.
                self._look(unheard)
            seconds = LOOK_SECONDS
        if self._told and not self._watch.unheard():
            _say("all ranks have reached the driver now.")

    def _look(self, unheard: set[int]) -> None:
        executors = executors_of(self._context, self._tag)
        now = time.monotonic()
        if not executors:
            if now >= self._say_slots_at:
                self._say_slots_at = now + SLOTS_SAY_SECONDS
                self._say_what_holds_slots()
            return
        for partition in set().union(*executors.values()):
            self._started_at.setdefault(partition, now)
        late = {one for one in unheard if self._has_run(one, now - UNREACHED_SECONDS)}
        if late - self._told:
            self._told |= late
            self._say_unreached(late)

    def _has_run(self, partition: int, since: float) -> bool:
        return self._started_at.get(partition, since + 1.0) <= since

    def _say_what_holds_slots(self) -> None:
        jobs = jobs_with_tasks(self._context, self._tag)
        _say(
            f"waiting until {self._watch.num_proc} slots are free at once. "
            + (
                f"Other jobs of this application use slots: {', '.join(jobs)}."
                if jobs
                else "No other job of this application uses any: Spark has yet to offer them."
            )
        )

    def _say_unreached(self, partitions: Collection[int]) -> None:
        hosts = hosts_of(self._context, self._tag, partitions)
        many = len(partitions) > 1
        who = f"{len(partitions)} of {self._watch.num_proc} ranks {'have' if many else 'has'}"
        start = f"the start of {'their tasks' if many else 'its task'}"
        _say(
            f"{who} not reached the driver at {self._driver} within {UNREACHED_SECONDS:g} s of "
            f"{start} on {', '.join(hosts) or 'executors'}. "
            "Python may be slow to start there. Else let these hosts connect to that port: open it "
            "in firewalls (RunConfig.port_range says which ports are taken), set spark.driver.host "
            "to a name of the driver that they can reach, or name a network that all have with "
            "RunConfig.network_interface. If the ranks reach one another, the run goes on without "
            "the output of those."
        )


def _say(text: str) -> None:
    print(f"sparkdl_runner: {text}", file=sys.stderr)

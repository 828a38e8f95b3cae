"""A run that has fewer ranks than it was asked for gets more once there are slots again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sparkdl_runner.launch.driver.spark.executors import Executor, list_executors
from sparkdl_runner.launch.driver.spark.slots import count_places
from sparkdl_runner.launch.driver.spark.task_shape import TaskShape

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOK_SECONDS = 5.0
# From one growth to the next: each ends the ranks, and starts them again.
GROWTH_SECONDS = 60.0


class _Turns:
    """Lets one run of this process grow at a time: two would count the same free slots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_at: float | None = None

    def is_free(self) -> bool:
        """Whether the last growth is so long ago that its ranks run."""
        return self._taken_at is None or time.monotonic() >= self._taken_at + GROWTH_SECONDS

    def take(self) -> bool:
        """Takes the turn, unless another run has it."""
        with self._lock:
            if not self.is_free():
                return False
            self._taken_at = time.monotonic()
            return True


_turns = _Turns()


class Growth:
    """Watches Spark's slots while a run is smaller than it was asked to be.

    The run grows when free slots were there at two looks in a row. The ranks are then asked to end
    with their next checkpoint, and the next attempt has ``take_target()`` of them.

    Args:
        context: The application's context.
        shape: That of the ranks' tasks.
    """

    def __init__(self, context: SparkContext, shape: TaskShape) -> None:
        self._context = context
        self._shape = shape
        self._target = 0
        self._hosts: set[str] = set()
        """Those that had executors while an attempt was started."""

    def take_target(self) -> int:
        """How many ranks the last attempt was asked to make room for, once; 0 if it was not."""
        target, self._target = self._target, 0
        return target

    @contextmanager
    def watched(self, size: int, wanted: int, ask: Callable[[str], None]) -> Iterator[None]:
        """Watches in a thread, where an attempt is smaller than it should be.

        Args:
            size: How many ranks it has.
            wanted: How many it was to have.
            ask: Asks all ranks to end with their next checkpoint; gets the reason. Called once at
                most, from another thread.
        """
        executors: list[Executor] = []
        with suppress(Exception):  # They are only for what is printed of a growth.
            executors = list_executors(self._context)
        self._hosts |= {executor.host for executor in executors}
        if size >= wanted:
            yield
            return
        over = threading.Event()
        known = {executor.identifier for executor in executors}
        watch = threading.Thread(
            target=self._watch,
            args=(size, wanted, known, ask, over),
            name="sparkdl-growth",
            daemon=True,
        )
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(
        self,
        size: int,
        wanted: int,
        known: set[str],
        ask: Callable[[str], None],
        over: threading.Event,
    ) -> None:
        before = 0
        while not over.wait(LOOK_SECONDS):
            if not _turns.is_free():
                before = 0  # Slots that were free then may be taken since.
                continue
            now, came = self._look(size, wanted, known)
            if size < (target := min(before, now)) and _turns.take():
                self._target = target
                ask(f"{size} → {target} ranks: {self._cause(came)}")
                return
            before = now

    def _look(self, size: int, wanted: int, known: set[str]) -> tuple[int, list[Executor]]:
        """How many ranks there could be just now, and the executors that have come."""
        try:
            return self._count(size, wanted, known)
        except Exception:  # The session ends, and the attempt with it.
            return size, []

    def _count(self, size: int, wanted: int, known: set[str]) -> tuple[int, list[Executor]]:
        places = count_places(self._context, self._shape)
        if places <= size:
            return size, []
        executors = list_executors(self._context)
        busy = self._shape.ranks * sum(executor.tasks for executor in executors)
        if busy < size:  # The ranks have not all begun, or some have ended.
            return size, []
        # Ranks that waited for slots of other jobs would make no progress meanwhile.
        free = max(0, places - busy)
        return min(wanted, size + free), [
            executor for executor in executors if executor.identifier not in known
        ]

    def _cause(self, came: list[Executor]) -> str:
        if not came:
            return "slots are free again"
        hosts = list(dict.fromkeys(executor.host for executor in came))
        is_back = all(host in self._hosts for host in hosts)
        names = ", ".join(hosts[:3]) + (", …" if len(hosts) > 3 else "")
        return f"executor{'s' if len(came) > 1 else ''} {names} came{' back' if is_back else ''}"

"""The ranks of one Spark task: each has an agent in a thread, and Spark takes them for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from sparkdl_runner.launch.wire.assignments import Assignment
from sparkdl_runner.rank.world import Peer

T = TypeVar("T")


class RanksOfTask:
    """Runs the agents of one task, which begin and end together.

    Args:
        places: The numbers of the task's agents in the gang.
        exchange: Tells the agents of all tasks of these, and returns everybody's assignment.
    """

    def __init__(
        self, places: range, exchange: Callable[[list[Peer]], dict[int, Assignment]]
    ) -> None:
        self._places = places
        self._exchange = exchange
        self._lock = threading.Lock()
        self._peers: list[Peer] = []
        self._assignments: Future[dict[int, Assignment]] = Future()
        self._stops: list[Callable[[], None]] = []
        self._has_failed = False

    def run(self, agent: Callable[[int], T]) -> list[T]:
        """Runs an agent for each place, in a thread of its own, which its worker needs.

        Returns:
            What they return.

        Raises:
            BaseException: What one has raised first, once the others have been stopped.
        """
        with ThreadPoolExecutor(len(self._places), "sparkdl-agent") as threads:
            agents = [threads.submit(agent, place) for place in self._places]
            ended, others = wait(agents, return_when=FIRST_EXCEPTION)
            if others:
                self._stop()
        # Of those that wait in Spark's barrier for one that will not come.
        self._assignments.cancel()
        for one in (*ended, *others):
            one.result()
        return [one.result() for one in agents]

    def on_failure(self, stop: Callable[[], None]) -> None:
        """Takes what stops one of the agents once another raises, or has raised."""
        with self._lock:
            self._stops.append(stop)
            has_failed = self._has_failed
        if has_failed:
            stop()

    def one_by_one(self, action: Callable[[], T]) -> T:
        """Calls an action that two threads must not run at once."""
        with self._lock:
            return action()

    def gather(self, me: Peer) -> Assignment:
        """An agent's assignment by Spark's barrier, which the last of the task enters for all."""
        with self._lock:
            self._peers.append(me)
            is_last = len(self._peers) == len(self._places)
        if is_last:
            try:
                self._assignments.set_result(self._exchange(self._peers))
            except BaseException as error:
                self._assignments.set_exception(error)
        return self._assignments.result()[me.partition]

    def _stop(self) -> None:
        with self._lock:
            self._has_failed, stops = True, list(self._stops)
        for stop in stops:
            stop()


def shares(gpus: tuple[str, ...], ranks: int) -> list[tuple[str, ...]]:
    """A task's GPUs, shared out equally among its ranks; what is left over goes to none."""
    each = len(gpus) // ranks
    return [gpus[rank * each : (rank + 1) * each] for rank in range(ranks)]


def seen_by_all(shared: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The GPUs of a task, in the order in which ``LOCAL_RANK`` is the number of a rank's first."""
    return tuple(gpu for turn in zip(*shared, strict=True) for gpu in turn)

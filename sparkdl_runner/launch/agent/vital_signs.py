"""The vital signs of a worker: whether it lives, and whether it makes progress.

A process that waits for ever looks like one that works: so two things are told apart. *Signs of
life* are a pulse or any use of the processor; a process that is stopped, or stuck in the kernel,
gives none. *Progress* is that the main thread came to another place, that the process computed
(for a quarter of the time in which it was given a core, or more; waiting in a loop takes less), or
that it printed something.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparkdl_runner.base import processes
from sparkdl_runner.launch.wire.messages import Pulse, VitalSigns

_BUSY_SHARE = 0.25
# A thread that could have had a core for less than this is judged at a later look. The kernel
# counts a wait for a core when it ends, so a part of it may belong to the time before.
_LEAST_GIVEN_SECONDS = 0.1


class Observer:
    """Watches one worker.

    Args:
        pid: The worker's process, or what it is forked from.
        now: The clock.
    """

    def __init__(self, pid: int, now: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._now = now
        self._lock = threading.Lock()
        self._place: int | None = None
        self._joining_since: float | None = None
        self._alive_at = self._moved_at = self._pulse_at = now()
        self._cpu_seconds = 0.0
        self._threads = [pid]
        self._judged = {pid: (self._pulse_at, *_ran_and_waited(pid, pid))}
        """For each thread, when it was judged last, and how long it had run and waited by then."""

    def watch(self, pid: int) -> None:
        """Watches this process from now on."""
        with self._lock:
            if pid != self._pid:
                self._pid, self._threads, self._cpu_seconds = pid, [pid], 0.0

    def pulse(self, pulse: Pulse) -> None:
        """Takes note of a pulse."""
        with self._lock:
            self._alive_at = self._pulse_at = self._now()
            # The waiting of a backend or a GPU uses the processor, and is no progress.
            self._threads = [] if pulse.communicating or pulse.on_gpu else pulse.threads
            if pulse.place != self._place:
                self._place, self._moved_at = pulse.place, self._alive_at
            if not pulse.joining:
                self._joining_since = None
            elif self._joining_since is None:
                self._joining_since = self._alive_at

    def printed(self) -> None:
        """Takes note of output."""
        with self._lock:
            self._moved_at = self._alive_at = self._now()

    def look(self) -> VitalSigns:
        """Looks at the process, from outside."""
        threads = self._threads
        process = _stat(self._pid)
        state, cpu_seconds = (process.state, process.cpu_seconds) if process else ("", 0.0)
        if threads and not processes.HAS_PROC:
            threads = [self._pid]  # All threads of the process, as if they were one.
        ran_and_waited = {tid: _ran_and_waited(self._pid, tid) for tid in threads}
        with self._lock:
            now = self._now()
            if cpu_seconds > self._cpu_seconds:
                self._alive_at = now
            if self._busy_share(now, ran_and_waited) > _BUSY_SHARE:
                self._moved_at = now
            self._cpu_seconds = cpu_seconds
            since = self._joining_since
            return VitalSigns(
                silent_seconds=now - self._alive_at,
                idle_seconds=now - self._moved_at,
                joining_seconds=0.0 if since is None else self._pulse_at - since,
                state=state,
                has_begun=self._place is not None,
            )

    def _busy_share(self, now: float, ran_and_waited: dict[int, tuple[float, float]]) -> float:
        """How much of the time in which they could have, the threads computed; 1 for each at most.

        The time that a thread waits for a processor is left out: where many processes share few
        cores, a thread that computes all the time is on a core for a small part of it.
        """
        share, judged = 0.0, {}
        for tid, (ran, waited) in ran_and_waited.items():
            since, ran_before, waited_before = self._judged.get(tid, (now, ran, waited))
            given = (now - since) - (waited - waited_before)
            if given < _LEAST_GIVEN_SECONDS:
                judged[tid] = (since, ran_before, waited_before)
            else:
                share += (ran - ran_before) / given
                judged[tid] = (now, ran, waited)
        self._judged = judged
        return share


def process_state(pid: int) -> str:
    """A process's state, as in proc(5); empty if there is none."""
    stat = _stat(pid)
    return stat.state if stat else ""


def _stat(pid: int, thread: int | None = None) -> processes.ProcessStat | None:
    try:
        return processes.stat(pid, thread)
    except OSError:
        return None  # Whoever looks goes on looking.


def _ran_and_waited(pid: int, tid: int) -> tuple[float, float]:
    """Seconds that a thread ran, and seconds that it was ready to run and waited for a processor.

    See the kernel's documentation, sched-stats. Where a kernel does not count them (gVisor, macOS),
    the seconds of ``stat`` are taken, and the thread is held to have waited for none.
    """
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as schedstat:
            ran, waited, _ = schedstat.read().split()
    except (OSError, ValueError):
        stat = _stat(pid, tid if processes.HAS_PROC else None)
        return stat.cpu_seconds if stat else 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9

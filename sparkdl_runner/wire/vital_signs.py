"""What an agent knows of its worker: whether it lives, and whether it gets anywhere.

A process that waits for ever looks like one that works: so two things are told apart. *Signs of
life* are a pulse or any use of the processor; a process that is stopped, or stuck in the kernel,
gives none. *Progress* is that the main thread came to another place, that the process computed
(a quarter of a core or more; waiting in a loop takes less), or that it printed something.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_BUSY_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class VitalSigns:
    """One look at a worker."""

    silent_seconds: float
    """Since the last sign of life."""
    idle_seconds: float
    """Since the last progress."""
    joining_seconds: float
    """For how long it has been in the backend's rendezvous; 0 if it is not."""
    state: str
    """As in proc(5): R, S, D, T, Z; empty where that cannot be had."""
    has_begun: bool
    """Whether it is past its imports, and with the function: the other fields count from then."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> VitalSigns:
        """Rebuilds what ``to_json`` returned.

        Raises:
            TypeError, ValueError: It is something else.
        """
        return cls(
            silent_seconds=float(fields["silent_seconds"]),
            idle_seconds=float(fields["idle_seconds"]),
            joining_seconds=float(fields["joining_seconds"]),
            state=str(fields["state"])[:1],
            has_begun=bool(fields["has_begun"]),
        )


class Observer:
    """Watches one worker.

    Args:
        pid: The worker's process.
        now: The clock.
    """

    def __init__(self, pid: int, now: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._now = now
        self._lock = threading.Lock()
        self._place: int | None = None
        self._joining_since: float | None = None
        self._seen_at = self._alive_at = self._moved_at = now()
        self._pulse_at = self._seen_at
        self._cpu_seconds = 0.0
        self._thread_seconds = 0.0
        self._threads: tuple[int, ...] = (pid,)

    def pulse(
        self,
        place: int,
        threads: Sequence[int],
        *,
        joining: bool,
        communicating: bool,
        on_gpu: bool = False,
    ) -> None:
        """Takes note of a pulse."""
        with self._lock:
            self._alive_at = self._pulse_at = self._now()
            self._threads = () if communicating or on_gpu else tuple(threads)
            if place != self._place:
                self._place, self._moved_at = place, self._alive_at
            if not joining:
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
        state, cpu_seconds = _state(f"/proc/{self._pid}/stat")
        thread_seconds = sum(_state(f"/proc/{self._pid}/task/{tid}/stat")[1] for tid in threads)
        with self._lock:
            now = self._now()
            passed = now - self._seen_at
            if cpu_seconds > self._cpu_seconds:
                self._alive_at = now
            if thread_seconds - self._thread_seconds > _BUSY_SHARE * passed:
                self._moved_at = now
            self._cpu_seconds, self._thread_seconds = cpu_seconds, thread_seconds
            self._seen_at = now
            since = self._joining_since
            return VitalSigns(
                silent_seconds=now - self._alive_at,
                idle_seconds=now - self._moved_at,
                joining_seconds=0.0 if since is None else self._pulse_at - since,
                state=state,
                has_begun=self._place is not None,
            )


def _state(path: str) -> tuple[str, float]:
    """State and seconds of processor time of a process or thread; see proc(5), ``stat``."""
    try:
        with open(path, "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return "", 0.0
    ticks = int(fields[11]) + int(fields[12])
    return fields[0].decode(), ticks / os.sysconf("SC_CLK_TCK")

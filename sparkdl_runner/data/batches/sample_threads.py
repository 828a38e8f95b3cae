"""Threads that work on the rows of a chunk: images and transforms of samples let go of the GIL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from sparkdl_runner.base.cores import usable_cores
from sparkdl_runner.rank import world

T = TypeVar("T")


class SampleThreads:
    """As many threads as the host has cores for this rank, made when they are first used."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or max(1, usable_cores() // _ranks_here())
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[int], T], rows: int) -> list[T]:
        """Returns ``work(row)`` for each of ``rows`` rows, once no thread works any more.

        Raises:
            Exception: What ``work`` raised for the first row, in order, for which it did.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, "sparkdl-samples")
        # Many small parts, so that threads wait little for the one that ends last.
        size = max(1, rows // (16 * self.count))
        parts = [range(first, min(first + size, rows)) for first in range(0, rows, size)]
        jobs = [self._pool.submit(lambda part: [work(row) for row in part], part) for part in parts]
        wait(jobs)  # Also where one failed: the others write into the same memory.
        return [result for job in jobs for result in job.result()]

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _ranks_here() -> int:
    return world.current_world().local_size if world.in_worker() else 1

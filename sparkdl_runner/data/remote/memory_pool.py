"""Memory for what is fetched from remote storage: counted before it is asked for.

It is mapped for itself: memory of C's allocator would stay with the thread that fetched, in pieces
as large as row groups. What held a row group is kept for the next one, as far as the limit allows:
new pages would cost the kernel more time than a request. What passed to a disk is kept while other
data pass, and then freed: the disk's own cache can use it.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress

import numpy as np

_LEAST_BYTES = 1 << 20
"""Data on their way to a disk get at least so much memory, even if the pool is full."""
_LOOK_SECONDS = 0.1
_STEPS = 16
"""Sizes are rounded up by less than a sixteenth, so that the memory also fits the next row group,
which is about as large."""


class MemoryPool:
    """Memory up to a number of bytes, for all threads that fetch.

    Args:
        limit_bytes: What all of it may take. It may be changed at any time.
        stopping: Set to end the waiting for memory, which then fails.
    """

    def __init__(self, limit_bytes: int, stopping: threading.Event) -> None:
        self.limit_bytes = limit_bytes
        self._stopping = stopping
        self._used_bytes = 0
        self._kept: list[mmap.mmap] = []
        """Memory that nobody uses. What was used last comes last."""
        self._kept_bytes = 0
        self._is_closed = False
        self._passing = 0
        # A finalizer may let memory go in a thread that has the lock: a Condition's allows that.
        self._changed = threading.Condition()

    @property
    def largest_bytes(self) -> int:
        """The largest row group that is fetched whole: the pool has memory for two."""
        return max(_LEAST_BYTES, self.limit_bytes // 2)

    def take(self, size: int, *, always: bool = False) -> memoryview | None:
        """Memory of so many bytes; None if it has not so much left, unless ``always``.

        It is let go with its last ``memoryview``. A quarter of the pool stays for what passes.
        """
        with self._changed:
            if not always and self._used_bytes + size > 3 * self.limit_bytes // 4:
                return None
            return self._map(size)

    @contextmanager
    def passing(self, size: int) -> Iterator[memoryview]:
        """Memory through which so many bytes pass to a disk, in a few equal steps.

        One thread that has such memory needs no other to go on, so that others may wait for it.

        Raises:
            CancelledError: There is none yet, and ``stopping`` is set.
        """
        steps = max(1, -(-size // self.largest_bytes))
        wanted = -(-size // steps)
        with self._changed:
            while (granted := self._for_passing(wanted)) is None:
                if self._stopping.is_set():
                    raise CancelledError
                self._changed.wait(_LOOK_SECONDS)
            self._passing += 1
            memory = self._map(granted, passes=True)
        try:
            yield memory
        finally:
            with self._changed:
                self._passing -= 1
                if not self._passing:
                    self._keep_up_to(0)
                self._changed.notify_all()

    def _for_passing(self, wanted: int) -> int | None:
        free = min(wanted, self.limit_bytes - self._used_bytes)
        if free == wanted or not self._passing:
            return max(free, min(wanted, _LEAST_BYTES))
        return None

    def close(self) -> None:
        """Frees the memory that nobody uses. What is still used is freed with its last view."""
        with self._changed:
            self._is_closed = True
            self._keep_up_to(0)

    def _map(self, size: int, *, passes: bool = False) -> memoryview:
        step = 1 << max(1, size // _STEPS).bit_length() - 1
        most = 3 * self.limit_bytes // 4 - self._used_bytes
        if passes:  # Two of the largest size still fit beside one another.
            most = min(self.largest_bytes, self.limit_bytes - self._used_bytes)
        mapped_bytes = max(1, size, min(most, -(-size // step) * step))
        mapped = self._kept_for(size, mapped_bytes)
        if mapped is None:
            self._keep_up_to(self.limit_bytes - self._used_bytes - mapped_bytes)
            mapped = mmap.mmap(-1, mapped_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            # Some kernels and systems have none. A page fault for 4 KiB costs more.
            with suppress(OSError, AttributeError):
                mapped.madvise(mmap.MADV_HUGEPAGE)
        mapped_bytes = len(mapped)
        self._used_bytes += mapped_bytes
        # Each user has an array of its own, which lives as long as any view of it.
        memory = np.frombuffer(mapped, dtype=np.uint8)
        weakref.finalize(memory, self._let_go, mapped, passes).atexit = False
        return memory.data[:size]

    def _kept_for(self, size: int, most: int) -> mmap.mmap | None:
        """The smallest kept memory of ``size`` to ``most`` bytes; None if there is none."""
        fitting = [mapped for mapped in self._kept if size <= len(mapped) <= most]
        if not fitting:
            return None
        mapped = min(fitting, key=len)
        mapped_bytes = len(mapped)
        self._kept.remove(mapped)
        self._kept_bytes -= mapped_bytes
        return mapped

    def _keep_up_to(self, size: int) -> None:
        """Frees kept memory, the longest unused first, until at most so many bytes are left."""
        while self._kept and self._kept_bytes > size:
            mapped_bytes = len(self._kept.pop(0))  # It is unmapped with this reference.
            self._kept_bytes -= mapped_bytes

    def _let_go(self, mapped: mmap.mmap, passed: bool) -> None:
        # It may interrupt any of the above in a thread that has the lock, so it takes nothing out.
        mapped_bytes = len(mapped)
        with self._changed:
            self._used_bytes -= mapped_bytes
            whole = self._used_bytes + self._kept_bytes + mapped_bytes
            is_wanted = not self._is_closed and (not passed or self._passing > 0)
            if is_wanted and whole <= self.limit_bytes:
                self._kept.append(mapped)
                self._kept_bytes += mapped_bytes
            self._changed.notify_all()

"""Memory for what is fetched from remote storage: counted before it is asked for.

It is mapped for itself and goes back to the system at once. Memory of C's allocator would stay with
the thread that fetched, in pieces as large as row groups.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress

_LEAST_BYTES = 1 << 20
"""Data on their way to a disk get at least so much memory, even if the room is full."""
_LOOK_SECONDS = 0.1


class Room:
    """Memory up to a number of bytes, for all threads that fetch.

    Args:
        limit_bytes: What all of it may take. It may be changed at any time.
        stopping: Set to end the waiting for memory, which then fails.
    """

    def __init__(self, limit_bytes: int, stopping: threading.Event) -> None:
        self.limit_bytes = limit_bytes
        self._stopping = stopping
        self._used_bytes = 0
        self._passing = 0
        # A finalizer may let memory go in a thread that has the lock: a Condition's allows that.
        self._changed = threading.Condition()

    @property
    def part_bytes(self) -> int:
        """The largest row group that is fetched whole: two have room beside one another."""
        return max(_LEAST_BYTES, self.limit_bytes // 2)

    def take(self, size: int, *, always: bool = False) -> memoryview | None:
        """Memory of so many bytes; None if there is no room, unless it is wanted ``always``.

        It is let go with its last ``memoryview``. A quarter of the room stays for what passes.
        """
        with self._changed:
            if not always and self._used_bytes + size > 3 * self.limit_bytes // 4:
                return None
            return self._map(size)

    @contextmanager
    def passing(self, size: int) -> Iterator[memoryview]:
        """Memory through which so many bytes pass to a disk, in a few equal parts.

        One thread that has such memory needs no other to go on, so that others may wait for it.

        Raises:
            CancelledError: There is none yet, and ``stopping`` is set.
        """
        parts = max(1, -(-size // self.part_bytes))
        wanted = -(-size // parts)
        with self._changed:
            while (granted := self._for_passing(wanted)) is None:
                if self._stopping.is_set():
                    raise CancelledError
                self._changed.wait(_LOOK_SECONDS)
            self._passing += 1
            memory = self._map(granted)
        try:
            yield memory
        finally:
            with self._changed:
                self._passing -= 1
                self._changed.notify_all()

    def _for_passing(self, wanted: int) -> int | None:
        free = min(wanted, self.limit_bytes - self._used_bytes)
        if free == wanted or not self._passing:
            return max(free, min(wanted, _LEAST_BYTES))
        return None

    def _map(self, size: int) -> memoryview:
        mapped = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # Some kernels have none. A page fault for 4 KiB costs much more.
            mapped.madvise(mmap.MADV_HUGEPAGE)
        self._used_bytes += size
        weakref.finalize(mapped, self._let_go, size).atexit = False
        return memoryview(mapped)[:size]

    def _let_go(self, size: int) -> None:
        with self._changed:
            self._used_bytes -= size
            self._changed.notify_all()

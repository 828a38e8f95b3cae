"""Free memory for processes that are measured.

A virtual machine may return memory that has been free for two seconds to its host. The first use of
such memory is slow: 80 ms for 32 MiB were seen, and 3 ms otherwise. Whichever way to work came next
would pay for that. So a benchmark holds memory, and frees it just before the measured processes
go on.
"""

from __future__ import annotations

import contextlib
import mmap


class SpareMemory:
    """Memory of so many bytes, which is held between measurements."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._memory: mmap.mmap | None = None

    def hold(self) -> None:
        """Takes the memory, unless it is held, and uses all of it."""
        if self._memory is not None:
            return
        self._memory = mmap.mmap(-1, self._size_bytes, mmap.MAP_PRIVATE)
        with contextlib.suppress(OSError):  # Some kernels have no huge pages, which loaders use.
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, self._size_bytes, mmap.PAGESIZE):
            self._memory[page] = 1

    def free(self) -> None:
        """Gives the memory back to the system, if it is held."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

"""Files that a test leaves open in its process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_left_open() -> Iterator[None]:
    """Fails if what is done inside leaves a file, a pipe or a socket open."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    deadline = time.monotonic() + 120
    # Another thread of the process may have one open just now, but closes it.
    while left := set(os.listdir("/proc/self/fd")) - before:
        assert time.monotonic() < deadline, f"left open: {left}"
        time.sleep(0.01)

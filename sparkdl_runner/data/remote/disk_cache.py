"""A cache on the local disk for what comes from far away, shared by the processes of one user.

Each entry is a file that is written under another name and renamed, so that a process sees all of
it or none. Who fetches it holds a lock on that file, and others wait: one request serves all ranks
of a host, until the cache is full. An entry ends in its CRC-32, which a process compares when it
first reads the entry: one that does not fit is removed and fetched again. No entry makes room for
another of its data set: an epoch reads everything once, so any entry is as useful as any other.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa

from sparkdl_runner.base.open_file import arrow_file
from sparkdl_runner.data.remote.cache_folder import OPENED, UNFINISHED, CacheFolder

_log = logging.getLogger(__name__)

_CRC_BYTES = 4
_MOST_CHECKED, _BUFFER_BYTES = 1 << 16, 1 << 20
_LARGE_BYTES = 1 << 20
"""Larger entries get their place on the disk before they are written: that costs less."""
_LOOK_SECONDS, _WAIT_SECONDS = 0.01, 30.0
"""How often, and how long, an entry is waited for that another process fetches."""


class DiskCache:
    """Values by key, of one data set. Its arguments and errors are those of ``CacheFolder``."""

    def __init__(self, location: Path, limit_bytes: int | None, dataset: str) -> None:
        self._place = CacheFolder(location, limit_bytes, dataset)
        self._folder = self._place.path
        self._is_full = False
        self._checked: dict[str, int] = {}  # By key, when the entry was last changed.
        self._mutex = threading.Lock()

    def get(self, key: str, start: int = 0) -> memoryview | None:
        """The value of a key; None if it is not there, or damaged."""
        stream = self.open(key, start)
        if stream is None:
            return None
        with stream:
            value_bytes = stream.size() - start - _CRC_BYTES
            return memoryview(stream.read_at(value_bytes, start))

    def open(self, key: str, start: int = 0) -> pa.NativeFile | None:
        """A file that has the value of a key at ``start``; None if it is not there, or damaged."""
        path = self._folder / key
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            # As for local files: an unchanged file is not read again to be compared.
            if self._checked.get(key) != found.st_ctime_ns:
                if not _is_whole(descriptor, start, found.st_size - _CRC_BYTES):
                    _log.warning("%s was damaged and is fetched again: look at that disk.", path)
                    path.unlink()
                    self._place.reserve(-max(0, found.st_size - start))
                    return None
                self._note_checked(key, found.st_ctime_ns)
            return arrow_file(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def get_or_fetch(
        self,
        key: str,
        fetch: Callable[[], memoryview],
        start: int = 0,
        wait: Callable[[float], object] = time.sleep,
    ) -> memoryview:
        """The value of a key, which is fetched and kept if it is not there and there is room.

        One thread of one process fetches, others wait. A disk that fails only ends the caching.

        Args:
            key: What to find it by.
            fetch: Gets the value from where it comes from.
            start: Where it is in the entry's file, which takes no room before it.
            wait: Sleeps for so many seconds; returns true to end the waiting.

        Raises:
            Exception: What ``fetch`` raised.
            CancelledError: ``wait`` returned true.
        """
        content = self.get(key, start)
        if content is not None:
            return content
        fetched: list[memoryview] = []

        def begin() -> tuple[int, Iterable[memoryview]]:
            fetched.append(fetch())
            return len(fetched[0]), fetched

        self._fill(key, begin, start, wait)
        # Another process may have kept it meanwhile.
        content = fetched[0] if fetched else self.get(key, start)
        return fetch() if content is None else content

    def open_or_fill(
        self,
        key: str,
        begin: Callable[[], tuple[int, Iterable[memoryview]]],
        start: int = 0,
        wait: Callable[[float], object] = time.sleep,
    ) -> pa.NativeFile | None:
        """A file that has the value of a key at ``start``, fetched as ``get_or_fetch`` does.

        ``begin`` returns the value's size, and its contents. Each is written before the next
        one is fetched. None if there is no room for it, or the disk fails.
        """
        stream = self.open(key, start)
        if stream is None:
            self._fill(key, begin, start, wait)
            stream = self.open(key, start)
        return stream

    def _fill(
        self,
        key: str,
        begin: Callable[[], tuple[int, Iterable[memoryview]]],
        start: int,
        wait: Callable[[float], object],
    ) -> None:
        """Fetches and keeps a value, unless another process does or there is no room."""
        try:
            locked = self._locked_file(key, wait)
        except OSError as error:
            self._give_up(error)
            return
        if locked is None:
            return
        try:
            if not (self._folder / key).exists():
                size, contents = begin()
                self._keep(key, size, contents, start, locked)
        finally:
            with suppress(OSError):  # The disk may have become read-only.
                if _is_at(locked, self._unfinished(key)):  # Nothing was kept.
                    os.unlink(self._unfinished(key))
            os.close(locked)

    def _unfinished(self, key: str) -> Path:
        return self._folder / f"{key}{UNFINISHED}"

    def _locked_file(self, key: str, wait: Callable[[float], object]) -> int | None:
        """A locked file to write an entry to; None if another one wrote it, or takes too long."""
        until = time.monotonic() + _WAIT_SECONDS
        while not self._is_full:
            with ExitStack() as to_close:
                descriptor = os.open(self._unfinished(key), OPENED, 0o600)
                to_close.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if wait(_LOOK_SECONDS):
                        raise CancelledError from None  # The storage may hang for all.
                    if time.monotonic() > until:
                        return None
                else:
                    # The last owner of the lock may have renamed or removed this very file.
                    if _is_at(descriptor, self._unfinished(key)):
                        if os.fstat(descriptor).st_size:  # To cut an empty file costs as much.
                            os.ftruncate(descriptor, 0)
                        to_close.pop_all()
                        return descriptor
            if (self._folder / key).exists():
                return None
        return None

    def _keep(
        self, key: str, size: int, contents: Iterable[memoryview], start: int, locked: int
    ) -> None:
        entry_bytes, is_kept = size + _CRC_BYTES, False
        if not self._make_room(entry_bytes, start, locked):
            return
        try:
            for buffer in _buffers(contents):  # What this raises is not the disk's.
                try:
                    start = _write(locked, buffer, start)
                except OSError as error:
                    self._give_up(error)
                    return
            try:
                self._unfinished(key).rename(self._folder / key)
                self._note_checked(key, os.fstat(locked).st_ctime_ns)
                is_kept = True
            except OSError as error:
                self._give_up(error)
        finally:
            if not is_kept:
                self._uncount(entry_bytes)

    def _make_room(self, entry_bytes: int, start: int, locked: int) -> bool:
        """Counts an entry, and gives it its place on the disk; False if there is no room for it."""
        counted = 0
        try:
            if not self._place.reserve(entry_bytes):
                self._is_full = True
                _log.info(
                    "The cache in %s is full: the rest is fetched each time.", self._place.root
                )
                return False
            counted = entry_bytes
            if entry_bytes > _LARGE_BYTES and hasattr(os, "posix_fallocate"):  # Not on macOS.
                os.posix_fallocate(locked, start, entry_bytes)
        except OSError as error:
            self._give_up(error)
            self._uncount(counted)
            return False
        return True

    def _uncount(self, size: int) -> None:
        with suppress(OSError):
            self._place.reserve(-size)

    def _note_checked(self, key: str, changed_ns: int) -> None:
        if len(self._checked) >= _MOST_CHECKED:
            self._checked.clear()  # To compare a few again costs less than to remember all.
        self._checked[key] = changed_ns

    def _give_up(self, error: OSError) -> None:
        with self._mutex:
            if self._is_full:
                return  # Another thread has told it.
            self._is_full = True
        what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"failed ({error})"
        _log.warning(
            "The disk of the cache in %s %s: nothing more is kept there, and the rest is fetched "
            "each time. Give a smaller cache_size_limit or another cache_location.",
            self._place.root,
            what,
        )

    def close(self) -> None:
        """Lets the entries go: they stay for later loaders, until others need the room."""
        self._place.close()


def _buffers(contents: Iterable[memoryview]) -> Iterator[memoryview]:
    """An entry in small buffers, and its CRC-32 at the end.

    A small buffer is still in the processor's cache when it is written.
    """
    crc32 = 0
    for content in contents:
        for at in range(0, len(content), _BUFFER_BYTES):
            buffer = content[at : at + _BUFFER_BYTES]
            crc32 = zlib.crc32(buffer, crc32)
            yield buffer
    yield memoryview(crc32.to_bytes(_CRC_BYTES, "little"))


def _write(descriptor: int, content: memoryview, at: int) -> int:
    """Writes to a place of a file; returns the place after it."""
    while content:
        written = os.pwrite(descriptor, content, at)
        content, at = content[written:], at + written
    return at


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path names an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _is_whole(descriptor: int, start: int, end: int) -> bool:
    """Whether the CRC-32 at the end of a file is that of what is before it."""
    crc32 = 0
    while start < end:
        buffer = os.pread(descriptor, min(_BUFFER_BYTES, end - start), start)
        if not buffer:
            return False
        crc32 = zlib.crc32(buffer, crc32)
        start += len(buffer)
    return os.pread(descriptor, _CRC_BYTES, start) == crc32.to_bytes(_CRC_BYTES, "little")

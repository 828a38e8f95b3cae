"""A cache on the local disk for what comes from far away, shared by the processes of one user.

Each entry is a file that is written under another name and renamed, so that a process sees all of
it or none. Who fetches it holds a lock on that file, and others wait: one request serves all ranks
of a host, until the cache is full. An entry ends in its CRC-32, which a process compares when it
first reads the entry: one that does not fit is removed and fetched again. No entry makes room for
another of its data set: an epoch reads everything once, so any entry is as useful as any other.

All data sets share the folder and its limit. Those that no process has open are removed where
another needs the room.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from sparkdl_runner.private_folder import private_folder

_log = logging.getLogger(__name__)

_NAME = "sparkdl_runner-row-groups"  # For nothing else: what no process uses there may go.
_USED, _USERS, _PART = "used", "users", ".part"
_USED_DIGITS, _CRC_BYTES = 20, 4
_MOST_CHECKED, _READ_BYTES = 1 << 16, 1 << 20
_LOOK_SECONDS, _WAIT_SECONDS = 0.01, 30.0
"""How often, and how long, an entry is waited for that another process fetches."""


class DiskCache:
    """Values by key, of one data set.

    Args:
        location: A folder on a local disk; this user's own folder is made in there.
        limit_bytes: What all entries of this user may take there together; by default half of
            what is free now.
        dataset: Names the data set and its version, in characters of a file name.

    Raises:
        OSError: The folder cannot be made or written to.
    """

    def __init__(self, location: Path, limit_bytes: int | None, dataset: str) -> None:
        location.mkdir(parents=True, exist_ok=True)
        self._root = private_folder(_NAME, location)
        self._folder = self._root / dataset
        self._is_full = False
        self._checked: dict[str, int] = {}  # By key, when the entry was last changed.
        self._mutex = threading.Lock()
        with self._accounts() as used:
            if all(map(_is_unused, self._data_sets())):
                used = self._recount()  # A process that was killed may have counted too much.
            self._folder.mkdir(exist_ok=True)
            os.utime(self._folder)
            user = os.open(self._folder / _USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            # Also if the cache is never closed: else its folder could never make room for others.
            self._let_go = weakref.finalize(self, os.close, user)
            fcntl.flock(user, fcntl.LOCK_SH)
            self._write_used(used)
        free = shutil.disk_usage(self._root).free
        self._limit_bytes = (used + free) // 2 if limit_bytes is None else limit_bytes

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
                    self._reserve(-max(0, found.st_size - start))
                    return None
                self._note_checked(key, found.st_ctime_ns)
            return pa.OSFile(f"/proc/self/fd/{descriptor}")
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
        try:
            turn = self._turn(key, wait)
        except OSError as error:
            self._give_up(error)
            turn = None
        try:
            content = self.get(key, start)  # Another one may have fetched it since.
            if content is None:
                content = fetch()
                if turn is not None:
                    self._keep(key, content, start, turn)
            return content
        finally:
            if turn is not None:
                with suppress(OSError):  # The disk may have become read-only.
                    if _is_at(turn, self._part(key)):  # Nothing was kept.
                        os.unlink(self._part(key))
                os.close(turn)

    def _part(self, key: str) -> Path:
        return self._folder / f"{key}{_PART}"

    def _turn(self, key: str, wait: Callable[[float], object]) -> int | None:
        """A locked file to write an entry to; None if another one wrote it, or takes too long."""
        until = time.monotonic() + _WAIT_SECONDS
        while not self._is_full:
            with ExitStack() as to_close:
                descriptor = os.open(self._part(key), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
                    if _is_at(descriptor, self._part(key)):
                        if os.fstat(descriptor).st_size:  # To cut an empty file costs as much.
                            os.ftruncate(descriptor, 0)
                        to_close.pop_all()
                        return descriptor
            if (self._folder / key).exists():
                return None
        return None

    def _keep(self, key: str, value: memoryview, start: int, part: int) -> None:
        size = len(value) + _CRC_BYTES
        path = self._folder / key
        try:
            if not self._reserve(size):
                self._is_full = True
                _log.info("The cache in %s is full: the rest is fetched each time.", self._root)
                return
            try:
                with open(part, "wb", closefd=False) as file:
                    file.seek(start)
                    file.write(value)
                    file.write(zlib.crc32(value).to_bytes(_CRC_BYTES, "little"))
                self._part(key).rename(path)
                self._note_checked(key, path.stat().st_ctime_ns)
            except BaseException:
                self._reserve(-size)
                raise
        except OSError as error:
            self._give_up(error)

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
            self._root,
            what,
        )

    def close(self) -> None:
        """Lets the entries go: they stay for later loaders, until others need the room."""
        self._let_go()

    def _reserve(self, size: int) -> bool:
        """Counts bytes that are to be written, or are gone; False if there is no room for them."""
        with self._accounts() as used:
            if size > 0 and used + size > self._limit_bytes:
                used = self._recount(make_room=True)
            fits = size <= 0 or used + size <= self._limit_bytes
            self._write_used(used + size if fits else used)
        return fits

    @contextmanager
    def _accounts(self) -> Iterator[int]:
        """Bytes in use, while no other process or thread asks."""
        with self._mutex, (self._root / _USED).open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            digits = file.read(_USED_DIGITS)
            yield int(digits) if digits.isdigit() else self._recount()

    def _write_used(self, used: int) -> None:
        # In place: some file systems put a file that was made shorter on the disk at once.
        descriptor = os.open(self._root / _USED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            file.write(b"%0*d" % (_USED_DIGITS, max(0, used)))

    def _data_sets(self) -> list[Path]:
        """The oldest first."""
        folders = [entry for entry in self._root.iterdir() if entry.is_dir()]
        return sorted(folders, key=lambda folder: folder.stat().st_mtime)

    def _recount(self, make_room: bool = False) -> int:
        """Bytes of all entries, after those of unused data sets were removed if asked for."""
        total = 0
        for folder in self._data_sets():
            if (is_unused := _is_unused(folder)) and make_room:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for entry in os.scandir(folder):
                if is_unused and entry.name.endswith(_PART):
                    os.unlink(entry)  # Its writer was killed.
                else:
                    with suppress(OSError):
                        total += min(entry.stat().st_size, 512 * entry.stat().st_blocks)
        return total


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
        part = os.pread(descriptor, min(_READ_BYTES, end - start), start)
        if not part:
            return False
        crc32 = zlib.crc32(part, crc32)
        start += len(part)
    return os.pread(descriptor, _CRC_BYTES, start) == crc32.to_bytes(_CRC_BYTES, "little")


def _is_unused(folder: Path) -> bool:
    """Whether no process has a data set open."""
    try:
        descriptor = os.open(folder / _USERS, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True

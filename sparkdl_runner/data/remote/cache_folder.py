"""The folder of all caches of one user on a local disk, and how many bytes are in it.

All data sets share the folder and its limit. Those that no process has open are removed where
another needs the room.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkdl_runner.base.private_folder import private_folder

UNFINISHED = ".part"
"""How names of entries end that are being written."""
_NAME = "sparkdl_runner-row-groups"  # For nothing else: what no process uses there may go.
_USED, _USERS = "used", "users"
_USED_DIGITS = 20
# The folder is this user's alone. Where others may rename it, they may put one of theirs there.
OPENED = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class CacheFolder:
    """The place of one data set, which is in use until ``close``.

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
        self.root = private_folder(_NAME, location)
        self.path = self.root / dataset
        self._mutex = threading.Lock()
        with self._accounts() as used:
            if all(map(_is_unused, self._data_sets())):
                used = self._recount()  # A process that was killed may have counted too much.
            self.path.mkdir(exist_ok=True)
            os.utime(self.path)
            user = os.open(self.path / _USERS, OPENED, 0o600)
            # Also if the cache is never closed: else its folder could never make room for others.
            self.close = weakref.finalize(self, os.close, user)
            fcntl.flock(user, fcntl.LOCK_SH)
            self._write_used(used)
        free = shutil.disk_usage(self.root).free
        self._limit_bytes = (used + free) // 2 if limit_bytes is None else limit_bytes

    def reserve(self, size: int) -> bool:
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
        with self._mutex, os.fdopen(os.open(self.root / _USED, OPENED, 0o600), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            digits = file.read(_USED_DIGITS)
            yield int(digits) if digits.isdigit() else self._recount()

    def _write_used(self, used: int) -> None:
        # In place: some file systems put a file that was made shorter on the disk at once.
        with os.fdopen(os.open(self.root / _USED, OPENED, 0o600), "wb", buffering=0) as file:
            file.write(b"%0*d" % (_USED_DIGITS, max(0, used)))

    def _data_sets(self) -> list[Path]:
        """The oldest first."""
        folders = [entry for entry in self.root.iterdir() if entry.is_dir()]
        return sorted(folders, key=lambda folder: folder.stat().st_mtime)

    def _recount(self, make_room: bool = False) -> int:
        """Bytes of all entries, after those of unused data sets were removed if asked for."""
        total = 0
        for folder in self._data_sets():
            if (is_unused := _is_unused(folder)) and make_room:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for entry in os.scandir(folder):
                if is_unused and entry.name.endswith(UNFINISHED):
                    os.unlink(entry)  # Its writer was killed.
                else:
                    with suppress(OSError):
                        total += min(entry.stat().st_size, 512 * entry.stat().st_blocks)
        return total


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

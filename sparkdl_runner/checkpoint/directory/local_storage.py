"""A directory of checkpoints on local disk, or on one that is mounted.

Files are their owner's alone (0600, directories 0700), are made new or not at all, never through
a symbolic link, and are on the disk, with their names, before they count as written.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from typing import Any, BinaryIO

from sparkdl_runner.foreign_file import open_regular

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# What filesystems say that cannot flush a directory, as some that are mounted over a network.
_CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF, errno.ENOSYS)


class LocalStorage:
    """Checkpoints below a local path.

    Args:
        path: Absolute; made when the first file is.
        shown: How it is called in messages.
        poll_seconds: How often to look for other ranks' files.
    """

    def __init__(self, path: str, shown: str, *, poll_seconds: float) -> None:
        self._base = path
        self.shown = shown
        self.poll_seconds = poll_seconds

    def names(self, directory: str = "") -> list[str]:
        found = []
        top = self._path(directory) if directory else self._base
        for folder, _, files in os.walk(top, onerror=_raise_unless_gone):
            below = os.path.relpath(folder, self._base)
            found += [name if below == "." else f"{below}/{name}" for name in files]
        return found

    def exists(self, name: str) -> bool:
        return os.path.isfile(self._path(name))

    def create(self, name: str) -> _NewLocalFile:
        self._make_directories(name.rpartition("/")[0])
        path = self._path(name)
        return _NewLocalFile(os.open(path, _NEW, 0o600), os.path.dirname(path))

    def open(self, name: str) -> BinaryIO:
        # Folder by folder, so that no symbolic link on the way leads elsewhere.
        *folders, file = name.split("/")
        above = os.open(self._base, _FOLDER)
        try:
            for folder in folders:
                below = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
                os.close(above)
                above = below
            descriptor = open_regular(file, os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
        return os.fdopen(descriptor, "rb", buffering=0)

    def local_file(self, name: str) -> str | None:
        return self._path(name)

    def delete(self, name: str) -> None:
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            pass

    def delete_directories(self, directory: str) -> None:
        for folder, _, _ in os.walk(self._path(directory), topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass  # Something of someone else's is in there.
        try:
            os.rmdir(os.path.dirname(self._path(directory)))  # step-N, if this was its last attempt
        except OSError:
            pass

    def free_bytes(self) -> int | None:
        path = self._base
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        usage = shutil.disk_usage(path)
        return usage.free if usage.total else None

    def _path(self, name: str) -> str:
        return os.path.join(self._base, name)

    def _make_directories(self, directory: str) -> None:
        if not os.path.isdir(self._base):
            missing = []
            above = self._base
            while not os.path.isdir(above):
                missing.append(above)
                above = os.path.dirname(above)
            for path in reversed(missing):
                _make_directory(path)
        path = self._base
        for part in directory.split("/") if directory else ():
            path = os.path.join(path, part)
            _make_directory(path)
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise NotADirectoryError(
                    errno.ENOTDIR, "a symbolic link or a file is where a directory should be", path
                )


class _NewLocalFile:
    def __init__(self, descriptor: int, directory: str) -> None:
        self._descriptor = descriptor
        self._directory = directory

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        size_bytes = len(rest)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return size_bytes

    def close(self) -> None:
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _flush_directory(self._directory)


def _raise_unless_gone(error: OSError) -> None:
    """Without this, what cannot be read would look like an empty directory."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return  # Another rank was faster.
    _flush_directory(os.path.dirname(path))


def _flush_directory(path: str) -> None:
    """Makes the names in a directory survive a crash of the host."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # It may be written to and not read; its names are then flushed with the journal.
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise
    finally:
        os.close(descriptor)

"""A directory of checkpoints on local disk, or on one that is mounted.

Files are their owner's alone (0600, directories 0700), are made new or not at all, never through
a symbolic link, and are on the disk, with their names, before they count as written.
"""

from __future__ import annotations

import errno
import io
import os
import pwd
import shutil
import stat
from collections.abc import Collection
from contextlib import suppress

from sparkdl_runner.base.filesystem import is_far
from sparkdl_runner.base.foreign_file import open_regular
from sparkdl_runner.checkpoint.directory.in_memory import InMemory

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# To step through a folder takes no right to list it, where the system can open it so.
_TRIES = 5
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# The kernel shows it for an owner that it does not know, as servers do for root.
_NOBODY = 65534
# Filesystems that cannot flush a directory, as some network mounts, answer with one of these.
_CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF, errno.ENOSYS)


class LocalStorage:
    """Checkpoints below a local path.

    Args:
        path: Absolute; made when the first file is.
        shown: How it is called in messages.
        poll_seconds: How often to look for other ranks' files.
    """

    is_local = True
    # Hashing, which runs beside the training, seldom asks for the GIL with pieces this large.
    piece_bytes = 16 << 20
    retry_seconds = 60.0

    def __init__(self, path: str, shown: str, *, poll_seconds: float) -> None:
        self._base = path
        self.copies = InMemory()
        self.shown = shown
        self.poll_seconds = poll_seconds

    def names(self, directory: str = "") -> list[str]:
        paths = []
        top = self._path(directory) if directory else self._base
        for folder, _, files in os.walk(top, onerror=_raise_unless_gone):
            below = os.path.relpath(folder, self._base)
            paths += [name if below == "." else f"{below}/{name}" for name in files]
        return paths

    def exists(self, name: str) -> bool:
        return os.path.isfile(self._path(name))

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        descriptor = self._create(name)
        try:
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            _flush_directory(os.path.dirname(path))
        except BaseException:
            with suppress(OSError):  # The error that led here is the one to tell.
                os.unlink(path)
            raise

    def _create(self, name: str) -> int:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._make_directories(name.rpartition("/")[0])
                return os.open(self._path(name), _NEW, 0o600)
            except FileNotFoundError:
                # A rank that gives up its part of a checkpoint removes folders that are just empty.
                if not tries_left:
                    raise
        raise AssertionError  # The last try returns or raises.

    def replace(self, name: str, content: bytes) -> None:
        self.delete(name)
        self.write(name, content)

    def open(self, name: str) -> io.FileIO:
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
        return io.FileIO(descriptor)

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def delete_directory(self, directory: str, names: Collection[str]) -> None:
        for name in names:
            self.delete(name)
        # step-N goes too, if this was its last attempt. A folder with other files stays.
        below = [folder for folder, _, _ in os.walk(self._path(directory), topdown=False)]
        for folder in [*below, os.path.dirname(self._path(directory))]:
            with suppress(OSError):
                os.rmdir(folder)

    def free_bytes(self) -> int | None:
        path = self._base
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        usage = shutil.disk_usage(path)
        return usage.free if usage.total else None

    def other_owner(self) -> str:
        """The name of another user who owns the directory of checkpoints; empty if there is none.

        Its owner can replace the files in it. Root does not count, since root can replace files
        anywhere. Nor do mounts in user space, and servers that map root to nobody: the owners that
        they show say nothing.
        """
        try:
            owner = os.stat(self._base).st_uid
        except OSError:
            return ""  # It is not there yet.
        if owner in (0, os.geteuid(), _NOBODY) or is_far(self._base):
            return ""
        try:
            return pwd.getpwuid(owner).pw_name
        except KeyError:
            return f"user id {owner}"

    def _path(self, name: str) -> str:
        return os.path.join(self._base, name)

    def _make_directories(self, directory: str) -> None:
        path = self._base
        if not os.path.isdir(path):
            _make_directory(path)
        # The owner of the directory of checkpoints may make folders in it; see ``other_owner``.
        owners = (0, os.geteuid(), _NOBODY, os.stat(path).st_uid)
        for part in directory.split("/") if directory else ():
            path = os.path.join(path, part)
            _make_directory(path)
            state = os.lstat(path)
            if not stat.S_ISDIR(state.st_mode):
                raise NotADirectoryError(
                    errno.ENOTDIR, "a symbolic link or a file is where a directory should be", path
                )
            if state.st_uid not in owners:
                raise PermissionError(errno.EPERM, "another user's directory is in the way", path)


def _raise_unless_gone(error: OSError) -> None:
    """Without this, an unreadable directory would look empty."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _make_directory(path: str) -> None:
    """Makes a directory, and those above it, so that they survive a crash of the host."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make_directory(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return  # Another rank was faster.
    _flush_directory(above)


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

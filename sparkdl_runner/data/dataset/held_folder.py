"""Holds a folder open: what is read, written and deleted is in that very folder.

In a folder that others may write, somebody may put a link or another folder in the place of ours,
after its marker was read and before it is deleted; or a link in the place of a file that is to be
written, which leads to a file elsewhere. So a local folder is opened, and no link in it is
followed.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyarrow import fs

from sparkdl_runner.base.foreign_file import (
    IrregularFileError,
    open_regular,
    read_small,
    read_whole,
)
from sparkdl_runner.base.open_file import path_of_folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for a reader.
_ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class HeldFolder:
    """A folder of any filesystem; ``held`` makes it."""

    filesystem: fs.FileSystem
    name: str
    """Its path. Somebody may put another folder there meanwhile."""
    descriptor: int | None
    """The open folder, if it is local."""

    @property
    def path(self) -> str:
        """A path of the folder itself, for as long as it is held, where the system has one."""
        if self.descriptor is None:
            return self.name
        return path_of_folder(self.descriptor, self.name)

    @property
    def is_ours(self) -> bool:
        """Whether it belongs to this user, as far as the filesystem says whose it is."""
        return self.descriptor is None or os.fstat(self.descriptor).st_uid == os.geteuid()

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The content of a file in it that should be small.

        Raises:
            OSError: It cannot be read, or is a link.
            ForeignFileError: It is larger than ``limit_bytes``, or is no regular file.
        """
        if self.descriptor is None:
            return read_small(self.filesystem, f"{self.name}/{name}", limit_bytes)
        return read_whole(open_regular(name, os.O_NOFOLLOW, dir_fd=self.descriptor), limit_bytes)

    def write(self, name: str, content: bytes) -> None:
        """Writes a file in it, over one that is there.

        Raises:
            OSError: It cannot be written, or is a link or no regular file.
        """
        if self.descriptor is None:
            with self.filesystem.open_output_stream(f"{self.name}/{name}") as stream:
                stream.write(content)
            return
        with os.fdopen(os.open(name, _ANEW, 0o666, dir_fd=self.descriptor), "wb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise IrregularFileError(f"{self.name}/{name} is a pipe or a device, and no file")
            file.write(content)

    @property
    def can_move(self) -> bool:
        """Whether ``move`` replaces a file at once: on local disks, and on HDFS by hdfs-native."""
        return self.descriptor is not None or self.filesystem.type_name == "py::hdfs"

    def move(self, name: str, target: HeldFolder) -> None:
        """Puts a file in the place of the one of its name in another folder, where that can be.

        Raises:
            OSError: It cannot be moved.
        """
        if self.descriptor is None:
            self.filesystem.move(f"{self.name}/{name}", f"{target.name}/{name}")
        else:
            os.replace(name, name, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    def remove(self, name: str) -> None:
        """Deletes a file in it; of a link, the link.

        Raises:
            OSError: It is not there, or cannot be deleted.
        """
        if self.descriptor is None:
            self.filesystem.delete_file(f"{self.name}/{name}")
        else:
            os.unlink(name, dir_fd=self.descriptor)

    def delete(self) -> None:
        """Deletes what it holds, follows no link, and removes it.

        Raises:
            OSError: Something cannot be deleted, or it was replaced: then all that it held is gone.
        """
        if self.descriptor is None:
            self.filesystem.delete_dir(self.name)
            return
        with os.scandir(self.descriptor) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.name, dir_fd=self.descriptor)
                else:
                    os.unlink(entry.name, dir_fd=self.descriptor)
        os.rmdir(self.name)


@contextmanager
def held(
    filesystem: fs.FileSystem, path: str, *, may_be_link: bool = False
) -> Iterator[HeldFolder]:
    """Holds a folder.

    Args:
        filesystem: Where it is.
        path: Its path.
        may_be_link: Whether a link may lead to it, as to a folder that a person named.

    Raises:
        OSError: There is none, or a link is in its place that must not be there.
    """
    if not isinstance(filesystem, fs.LocalFileSystem):
        yield HeldFolder(filesystem=filesystem, name=path, descriptor=None)
        return
    descriptor = os.open(path, _FOLDER if may_be_link else _FOLDER | os.O_NOFOLLOW)
    try:
        yield HeldFolder(filesystem=filesystem, name=path, descriptor=descriptor)
    finally:
        os.close(descriptor)


def delete_folder(filesystem: fs.FileSystem, path: str) -> None:
    """Deletes a folder and what it holds.

    Raises:
        OSError: There is none, a link is in its place, or something cannot be deleted.
    """
    with held(filesystem, path) as folder:
        folder.delete()

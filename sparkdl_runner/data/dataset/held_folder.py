"""Looks at a folder and deletes that very folder, whatever takes its place meanwhile.

In a folder that others may write, somebody may put a link or another folder in the place of ours,
after its marker was read and before it is deleted. So a local folder is opened, without following a
link, and what is deleted is what that very folder holds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyarrow import fs


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
        """A path of the folder itself, for as long as it is held."""
        return self.name if self.descriptor is None else f"/proc/self/fd/{self.descriptor}"

    @property
    def is_ours(self) -> bool:
        """Whether it belongs to this user, as far as the filesystem says whose it is."""
        return self.descriptor is None or os.fstat(self.descriptor).st_uid == os.geteuid()

    def delete(self) -> None:
        """Deletes what it holds, follows no link, and removes it.

        Raises:
            OSError: Something cannot be deleted, or it was replaced: then all that it held is gone.
        """
        if self.descriptor is None:
            self.filesystem.delete_dir(self.name)
            return
        with os.scandir(self.descriptor) as found:
            for entry in list(found):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.name, dir_fd=self.descriptor)
                else:
                    os.unlink(entry.name, dir_fd=self.descriptor)
        os.rmdir(self.name)


@contextmanager
def held(filesystem: fs.FileSystem, path: str) -> Iterator[HeldFolder]:
    """Holds a folder.

    Raises:
        OSError: There is none, or a link is in its place.
    """
    if not isinstance(filesystem, fs.LocalFileSystem):
        yield HeldFolder(filesystem=filesystem, name=path, descriptor=None)
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
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

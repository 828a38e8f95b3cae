"""``Dataset``: a manifest, and where its files are for this process."""

from __future__ import annotations

from typing import NamedTuple

from pyarrow import fs

from sparkdl_runner.base.filesystem import is_far
from sparkdl_runner.data.dataset.files import FileInfo, Files
from sparkdl_runner.data.dataset.manifest import Manifest


def is_near(filesystem: fs.FileSystem, directory: str) -> bool:
    """Whether the kernel of this host knows the files of a directory."""
    return isinstance(filesystem, fs.LocalFileSystem) and not is_far(directory)


class Dataset(NamedTuple):
    """A data set as one process sees it. It unpacks into the first arguments of ``ArrowLoader``."""

    manifest: Manifest
    filesystem: fs.FileSystem
    directory: str
    """The data set's directory in ``filesystem``."""

    @property
    def is_local(self) -> bool:
        """Whether the kernel of this host knows the files."""
        return is_near(self.filesystem, self.directory)

    def path(self, file: FileInfo) -> str:
        """The path in ``filesystem`` of one of the manifest's files."""
        return f"{self.directory.rstrip('/')}/{file.path}"

    def paths(self) -> list[str]:
        """The paths in ``filesystem`` of all of the manifest's files, in their order."""
        directory = self.directory.rstrip("/")
        return [f"{directory}/{path}" for path in Files.of(self.manifest.files).paths()]

"""The filesystem that petastorm's readers are given: a manifest's files, and nothing beside them.

petastorm reads by pyarrow's old interface. That lists a path which turns out to be a folder, and
looks for ``_common_metadata`` in there, whose schema petastorm unpickles. Here a path is never a
folder, whatever becomes of it after it was checked; and what is opened must be what was described.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pyarrow import filesystem as old_filesystem
from pyarrow import fs

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.same_files import SameFiles, open_file
from sparkdl_runner.data.errors import DatasetError


class ListedFiles(old_filesystem.FileSystem):
    """The files of a manifest, for what reads by pyarrow's old interface.

    Args:
        manifest: What the data set holds.
        filesystem: Where it is.
        directory: Its path there.
        same: Holds what is opened against what was converted.
    """

    def __init__(
        self, manifest: Manifest, filesystem: fs.FileSystem, directory: str, same: SameFiles
    ) -> None:
        self._filesystem = filesystem
        self._same = same
        paths = [f"{directory.rstrip('/')}/{file.path}" for file in manifest.files]
        # What petastorm takes for a file's path, and gives back here, is the path of a URL.
        names = ["/" + quote(path.lstrip("/")) for path in paths]
        self._files = {
            name: (path, index) for index, (name, path) in enumerate(zip(names, paths, strict=True))
        }

    @property
    def urls(self) -> list[str]:
        """The files, in the manifest's order, as petastorm is to be told of them."""
        return [f"file://{name}" for name in self._files]

    def isdir(self, path: str) -> bool:
        """Never: no folder is looked into."""
        return False

    def isfile(self, path: str) -> bool:
        """Whether the manifest lists it."""
        return path in self._files

    def exists(self, path: str) -> bool:
        """The same."""
        return path in self._files

    def open(self, path: str, mode: str = "rb") -> Any:
        """Opens a file that the manifest lists, to be read.

        Raises:
            DatasetError: It is none, is gone, or is not the one that the manifest describes.
        """
        if path not in self._files or mode != "rb":
            raise DatasetError(f"{path} is no file that the manifest lists, so it is not opened.")
        path, index = self._files[path]
        try:
            stream, found = open_file(self._filesystem, path)
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error}.") from error
        try:
            self._same.check(stream, found, path, index)
            stream.seek(0)
        except BaseException:
            stream.close()
            raise
        return stream

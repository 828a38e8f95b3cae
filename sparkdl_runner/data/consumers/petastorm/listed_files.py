"""The filesystem that petastorm's readers are given: a manifest's files, and nothing beside them.

petastorm reads by pyarrow's old interface. That lists a path which turns out to be a folder, and
looks for ``_common_metadata`` in there, whose schema petastorm unpickles. Here a path is never a
folder, whatever becomes of it after it was checked; and each file is verified as it is opened.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pyarrow import filesystem as old_filesystem

from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import DatasetError


class ListedFiles(old_filesystem.FileSystem):
    """The files of a data set, for what reads by pyarrow's old interface."""

    def __init__(self, files: VerifiedFiles) -> None:
        self._files = files
        # petastorm names a file here by the path of the URL that it was given.
        paths = [files.path(index) for index in range(len(files.dataset.manifest.files))]
        self._index = {"/" + quote(path.lstrip("/")): index for index, path in enumerate(paths)}

    @property
    def urls(self) -> list[str]:
        """The files, in the manifest's order, as petastorm is to be told of them."""
        return [f"file://{name}" for name in self._index]

    def isdir(self, path: str) -> bool:
        """Never: no folder is looked into."""
        return False

    def isfile(self, path: str) -> bool:
        """Whether the manifest lists it."""
        return path in self._index

    def exists(self, path: str) -> bool:
        """The same."""
        return path in self._index

    def open(self, path: str, mode: str = "rb") -> Any:
        """Opens a file that the manifest lists, to be read.

        Raises:
            DatasetError: It is none, is gone, or is not the one that the manifest describes.
        """
        if path not in self._index or mode != "rb":
            raise DatasetError(f"{path} is no file that the manifest lists, so it is not opened.")
        index = self._index[path]
        try:
            stream, _ = self._files.open(index)
            stream.seek(0)
        except OSError as error:
            raise DatasetError(f"{self._files.path(index)} cannot be read: {error}.") from error
        return stream

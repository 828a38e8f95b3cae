"""The storage of checkpoints: the few operations that they need.

Files are written whole and new. Nothing is overwritten, renamed or appended to, since object
stores and Unity Catalog volumes cannot do all of that. Names are relative to the directory of
checkpoints.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from sparkdl_runner.base.filesystem import (
    StorageOptions,
    is_s3,
    local_path,
    normalize_url,
    open_filesystem,
    redact,
)
from sparkdl_runner.checkpoint.directory.in_memory import InMemory
from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage

if TYPE_CHECKING:
    from pyarrow import fs

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# These make directories by themselves; object stores would keep one made by us as an empty object.
_WITHOUT_DIRECTORIES = ("s3", "gcs", "abfs", "py::hdfs")
# Of one request, within 7 seconds: the first try again comes at once, the next after 0.05 s, each
# further one after twice as long. Only Arrow's client can send a part of a file again; what fails
# for longer is an outage, in which a whole call is tried again (see ``transient_errors``).
_S3_RETRIES = 8
# Such a version of pyarrow sends a small file by one request in place of three.
_DELAYED_OPEN_SINCE = 21


class Storage(Protocol):
    """A directory of checkpoints."""

    shown: str
    """Its URL without credentials, for messages."""
    poll_seconds: float
    """How often to look whether another rank's file is there."""
    is_local: bool
    """Whether this host sees it as a local directory."""
    piece_bytes: int
    """How much of a file to read at a time; an object store reads each piece by one request."""
    retry_seconds: float
    """How long what it failed to do is tried again."""
    copies: InMemory
    """Files that are in memory too."""

    def names(self, directory: str = "") -> list[str]:
        """The files below ``directory``, relative to the storage; none if it is not there."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""

    def write(self, name: str, content: bytes) -> None:
        """Makes a new file, with the directories above it; FileExistsError if there is one.

        Returns once the file would survive a crash of the host.
        """

    def replace(self, name: str, content: bytes) -> None:
        """Writes a file again that this process may have written before, wholly or in part."""

    def open(self, name: str) -> io.RawIOBase:
        """Opens a file to be read from its beginning to its end."""

    def delete(self, name: str) -> None:
        """Deletes a file; no error if there is none."""

    def delete_directory(self, directory: str, names: Collection[str]) -> None:
        """Deletes these files of a directory, and the directory where it holds no others.

        Also the directory above, if it is empty then.
        """

    def free_bytes(self) -> int | None:
        """The free space in bytes; None if unknown."""

    def other_owner(self) -> str:
        """Another user of this host who owns the directory; empty if there is none."""


def directory_url(directory: str | os.PathLike[str]) -> str:
    """The URL of the directory that a person named by a URL or a local path.

    Raises:
        TypeError: It is neither.
        ValueError: It is no URL, or one that holds credentials.
    """
    if isinstance(directory, os.PathLike):
        directory = os.fspath(directory)
    if not isinstance(directory, str) or not directory:
        raise TypeError(
            f"The directory of checkpoints is {directory!r}; expected a URL or a path, as text."
        )
    if not _SCHEME.match(directory) and not directory.startswith(("/Volumes/", "/dbfs/")):
        directory = f"file:{os.path.abspath(directory)}"
    return normalize_url(directory)


def open_storage(
    url: str,
    storage_options: StorageOptions | None = None,
    retry_seconds: float = LocalStorage.retry_seconds,
) -> Storage:
    """Opens the directory of checkpoints.

    Args:
        url: As ``directory_url`` returned it.
        storage_options: As in :func:`~sparkdl_runner.base.filesystem.open_filesystem`.
        retry_seconds: How long what it fails to do is tried again.
    """
    storage = _open(url, storage_options)
    storage.retry_seconds = retry_seconds
    return storage


def _open(url: str, storage_options: StorageOptions | None) -> Storage:
    path = local_path(url)
    if path is not None:
        is_mounted = url.startswith("dbfs:") or path.startswith("/dbfs/")
        return LocalStorage(path, redact(url), poll_seconds=0.5 if is_mounted else 0.05)
    options = dict(storage_options or {})
    if is_s3(url):
        import pyarrow
        from pyarrow import fs

        options.setdefault("retry_strategy", fs.AwsDefaultS3RetryStrategy(max_attempts=_S3_RETRIES))
        if int(pyarrow.__version__.partition(".")[0]) >= _DELAYED_OPEN_SINCE:
            options.setdefault("allow_delayed_open", True)
    filesystem, base = open_filesystem(url, options)
    return RemoteStorage(filesystem, base, redact(url))


class RemoteStorage:
    """A directory on a filesystem of ``pyarrow.fs``."""

    poll_seconds = 0.5
    is_local = False
    retry_seconds = LocalStorage.retry_seconds

    def __init__(self, filesystem: fs.FileSystem, base: str, shown: str) -> None:
        self._filesystem = filesystem
        self.copies = InMemory()
        is_hdfs = filesystem.type_name == "py::hdfs"
        # HDFS reads by as much. It is still in the processor's cache when it is hashed.
        self.piece_bytes = 1 << 20 if is_hdfs else LocalStorage.piece_bytes
        self._base = base.rstrip("/")
        self.shown = shown

    def names(self, directory: str = "") -> list[str]:
        from pyarrow import fs

        # Filesystems of fsspec remember what they listed, and other ranks write meanwhile.
        handler = getattr(self._filesystem, "handler", None)
        if isinstance(handler, fs.FSSpecHandler):
            handler.fs.invalidate_cache()
        where = self._path(directory) if directory else self._base
        selector = fs.FileSelector(where, recursive=True, allow_not_found=True)
        infos: Iterable[fs.FileInfo] = self._filesystem.get_file_info(selector)
        base = self._base.strip("/")
        return [
            info.path.strip("/")[len(base) + 1 :]
            for info in infos
            if info.type == fs.FileType.File and not info.path.endswith("/")
        ]

    def exists(self, name: str) -> bool:
        # One HEAD on S3, where to ask for its information is followed by a LIST if it is missing.
        try:
            self._filesystem.open_input_file(self._path(name)).close()
        except (FileNotFoundError, IsADirectoryError):
            return False
        return True

    def write(self, name: str, content: bytes) -> None:
        if self.exists(name):
            raise FileExistsError(f"{self.shown}/{name} is there already.")
        self.replace(name, content)

    def replace(self, name: str, content: bytes) -> None:
        if self._filesystem.type_name not in _WITHOUT_DIRECTORIES:
            self._filesystem.create_dir(self._path(name).rpartition("/")[0], recursive=True)
        # One request less than to delete and to write: on S3, Arrow's ``delete_file`` also writes
        # a marker of the folder.
        stream = self._filesystem.open_output_stream(self._path(name))
        try:
            stream.write(content)
            stream.close()
        except BaseException:
            # Never freed: that would send the request again, with the GIL held until it is
            # answered, and perhaps make a file that was given up.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
            raise

    def open(self, name: str) -> io.RawIOBase:
        # Arrow's own method would hide that a file of HDFS reads into memory by itself.
        opener = getattr(self._filesystem, "handler", self._filesystem)
        stream: io.RawIOBase = opener.open_input_stream(self._path(name))
        return stream

    def delete(self, name: str) -> None:
        try:
            self._filesystem.delete_file(self._path(name))
        except FileNotFoundError:
            pass

    def delete_directory(self, directory: str, names: Collection[str]) -> None:
        # On S3, Arrow deletes a directory by one request, and each file by three. Either leaves an
        # empty object that stands for the directory above, so that one goes with its last.
        above = directory.rpartition("/")[0] or directory
        others = set(self.names(above)).difference(names)
        if not others:
            self._delete_directory(above)
        elif not any(name.startswith(f"{directory}/") for name in others):
            self._delete_directory(directory)
        else:
            for name in names:
                self.delete(name)

    def _delete_directory(self, directory: str) -> None:
        try:
            self._filesystem.delete_dir(self._path(directory))
        except FileNotFoundError:
            pass

    def free_bytes(self) -> int | None:
        return None

    def other_owner(self) -> str:
        return ""

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"

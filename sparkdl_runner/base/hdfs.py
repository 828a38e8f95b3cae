"""HDFS without Hadoop's native library and without Java: hdfs-native behind Arrow's interface.

It reads Hadoop's configuration (``$HADOOP_CONF_DIR``), with its name services and mount tables, and
the delegation tokens that YARN gives its containers.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from hdfs_native import Client, FileStatus, WriteOptions
from pyarrow import fs

_PORT = 8020
_USER = "HADOOP_USER_NAME"
# As the server's Java names them, in the text of an error of no kind of its own.
_KINDS = {
    "AccessControlException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
}
# By default a wrong name or port is tried for three minutes. What may be tried for longer, such as
# the files of checkpoints, is tried again by its caller. A name service gets that time: its next
# NameNode may need half a minute to take over.
_PATIENCE = {"dfs.client.failover.max.attempts": "4"}
_NO_TICKET = "GSS_S_NO_CRED"
_NO_FALLBACK = "No viewfs fallback mount"
_PIECE_BYTES = 1 << 20
# The client copies what it reads three times: so small, it stays in the processor's cache. Its own
# streams give 64 KiB at a time, and would wait for Python's lock for each.
_READ_BYTES = 1 << 20
# Just below the largest block that glibc's allocator ever keeps for the process.
_KEPT_BYTES = 31 << 20
_REMOTE_ERROR = re.compile(r'\w*Error\("([\w.$]+)", "(.*)"\)', re.DOTALL)


def open_hdfs(url: str, user: str, settings: dict[str, str]) -> fs.FileSystem:
    """Opens the file system of a URL.

    Args:
        url: ``hdfs://host:port``, ``hdfs://nameservice``, or ``viewfs://…``.
        user: Whom to act as, where Hadoop asks for no proof; empty for this process's user.
        settings: Of Hadoop, beside those of its configuration.

    Raises:
        ValueError: This process already acts as another user.
        OSError: Nothing says where the file system is, or a mount table has no fallback.
    """
    if user and os.environ.setdefault(_USER, user) != user:
        raise ValueError(
            f"The URL names the user {user!r}, and {_USER} is {os.environ[_USER]!r}: leave the "
            "user out of the URL, or set the variable to the same."
        )
    of_one_host = {**_PATIENCE, **settings}
    _keep_memory()
    try:
        try:
            client = Client(url, of_one_host if urlsplit(url).port else settings)
        except RuntimeError:
            # A name without a port is a name service's, or a host with Hadoop's default port.
            if not url.startswith("hdfs://") or not urlsplit(url).hostname or urlsplit(url).port:
                raise
            client = Client(f"{url}:{_PORT}", of_one_host)
    except RuntimeError as error:
        if _NO_FALLBACK in str(error):
            raise OSError(
                f"{url} cannot be opened by hdfs-native: its mount table needs a fallback, the "
                "property fs.viewfs.mounttable.NAME.linkFallback in Hadoop's core-site.xml."
            ) from None
        raise OSError(
            f"{url} cannot be opened ({error}): name the host in the URL, or set HADOOP_CONF_DIR "
            "to the folder of Hadoop's core-site.xml and hdfs-site.xml."
        ) from None
    return fs.PyFileSystem(_Handler(client))


def _keep_memory() -> None:
    """Lets the next read use the memory of the last one.

    glibc keeps what is no larger than the largest block that was freed. The rest goes back to
    the kernel, and to get new pages from it takes longer than to read them.
    """
    bytearray(_KEPT_BYTES)


class _Handler(fs.FileSystemHandler):
    def __init__(self, client: Client) -> None:
        self._client = client

    def get_type_name(self) -> str:
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        found = self._info(selector.base_dir)
        if found.type == fs.FileType.NotFound and selector.allow_not_found:
            return []
        if found.type == fs.FileType.File:
            raise NotADirectoryError(f"{selector.base_dir} is a file.")
        with _short_errors(selector.base_dir):
            listed = self._client.list_status(selector.base_dir, selector.recursive)
            return [_file_info(one) for one in listed]

    def create_dir(self, path: str, recursive: bool) -> None:
        with _short_errors(path):
            self._client.mkdirs(path, 0o755, recursive)

    def delete_dir(self, path: str) -> None:
        with _short_errors(path):
            if not self._client.delete(path, True):
                raise FileNotFoundError(f"{path} is not there.")

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        selector = fs.FileSelector(path, allow_not_found=missing_dir_ok)
        for one in self.get_file_info_selector(selector):
            self.delete_dir(one.path)

    def delete_root_dir_contents(self) -> None:
        self.delete_dir_contents("/")

    def delete_file(self, path: str) -> None:
        with _short_errors(path):
            if not self._client.delete(path, False):
                raise FileNotFoundError(f"{path} is not there.")

    def move(self, src: str, dest: str) -> None:
        """Puts it into the place of what is there, which readers see whole or not at all."""
        with _short_errors(src):
            self._client.rename(src, dest, True)

    def copy_file(self, src: str, dest: str) -> None:
        with self.open_input_stream(src) as source, self.open_output_stream(dest, None) as sink:
            shutil.copyfileobj(source, sink)

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> HdfsFile:
        with _short_errors(path):
            return HdfsFile(_Told(self._client.read(path), path))

    def open_output_stream(self, path: str, metadata: dict[str, str] | None) -> pa.PythonFile:
        options = WriteOptions(overwrite=True, create_parent=True)
        with _short_errors(path):
            return pa.PythonFile(_Told(self._client.create(path, options), path), mode="w")

    def open_append_stream(self, path: str, metadata: dict[str, str] | None) -> pa.PythonFile:
        with _short_errors(path):
            return pa.PythonFile(_Told(self._client.append(path), path), mode="w")

    def _info(self, path: str) -> fs.FileInfo:
        try:
            with _short_errors(path):
                return _file_info(self._client.get_file_info(path))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)


class HdfsFile(pa.PythonFile):
    """A file that threads read side by side: of other such files, Arrow lets one read at a time."""

    def __new__(cls, told: _Told) -> HdfsFile:
        self: HdfsFile = super().__new__(cls, told, mode="r")
        return self

    def __init__(self, told: _Told) -> None:
        self.fill = told.fill
        # Arrow's own would copy once more.
        self.readinto = told.readinto


class _Told:
    """A file whose errors are Python's.

    Args:
        file: Of hdfs-native.
        path: Named in errors.
    """

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> memoryview:
        with _short_errors(self._path):
            start, end = self._file.tell(), len(self._file)
            size = end - start if size < 0 else min(size, end - start)
            memory = memoryview(pa.allocate_buffer(size)).cast("B")
            self.readinto(memory)
            return memory

    def readinto(self, memory: memoryview) -> int:
        """Reads on into memory; returns how many bytes there were."""
        start = self._file.tell()
        size = self.fill(start, memory)
        self._file.seek(start + size)
        return size

    def fill(self, start: int, memory: memoryview) -> int:
        """Reads to memory what is at a place of the file; returns how many bytes there were."""
        size = max(0, min(len(memory), len(self._file) - start))
        with _short_errors(self._path):
            for place in range(0, size, _READ_BYTES):
                end = min(place + _READ_BYTES, size)
                memory[place:end] = self._file.read_range(start + place, end - place)
        return size

    def write(self, data: Any) -> int:
        memory = memoryview(data).cast("B")
        with _short_errors(self._path):
            for place in range(0, len(memory), _PIECE_BYTES):
                # hdfs-native would convert an Arrow buffer byte by byte, by numbers of Python's.
                self._file.write(bytes(memory[place : place + _PIECE_BYTES]))
        return len(memory)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with _short_errors(self._path):
                self._file.close()


def _file_info(status: FileStatus) -> fs.FileInfo:
    kind = fs.FileType.Directory if status.isdir else fs.FileType.File
    size = None if status.isdir else status.length
    return fs.FileInfo(status.path, kind, size=size, mtime=status.modification_time / 1000)


@contextmanager
def _short_errors(path: str) -> Iterator[None]:
    """Raises what the server refuses as Python's own error, in a line, without Java's stack."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if _NO_TICKET in str(error):
            # hdfs-native compares a token's address with the URL's text, and resolves no name.
            raise PermissionError(
                f"{path} on HDFS: Kerberos is asked for, and this process has no ticket, and no "
                "token for the address as the URL has it. Run kinit, or where Hadoop gave tokens "
                "(HADOOP_TOKEN_FILE_LOCATION), name the NameNode by its IP address in the URL."
            ) from None
        found = _REMOTE_ERROR.search(str(error))
        name, message = found.groups() if found else ("", str(error))
        kind = _KINDS.get(name.rpartition(".")[2], type(error))
        kind = kind if issubclass(kind, OSError) else OSError
        line = re.split(r"\\n|\n", message)[0].replace('\\"', '"')
        raise kind(f"{path} on HDFS: {line}") from None

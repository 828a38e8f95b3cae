"""One file of a checkpoint: written with its checksum in one pass, and read back the same way."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

from sparkdl_runner.checkpoint.directory import tensor_files
from sparkdl_runner.checkpoint.directory.manifest import FileEntry
from sparkdl_runner.checkpoint.directory.storage import Storage

# Large enough that hashing and writing, which run beside the training, seldom ask for the GIL.
_PIECE_BYTES = 4 << 20
# Of a manifest, of a rank's list of its files, and of what an attempt began with.
MOST_BYTES = 64 << 20
# Of what an error says of a file: it may quote what somebody else has written.
_MOST_CHARACTERS = 400
# Before a service that does not answer is asked again.
_PAUSES_SECONDS = (1.0, 3.0)
# What a disk, or a mount of a network's, says of itself and not of a file.
OUTAGES = (
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EREMOTEIO,
)
_Content = TypeVar("_Content")


class DamageError(Exception):
    """A file is not what was written, and what is wrong with it."""


class UnreadableError(DamageError):
    """A file may be as it was; the storage that holds it does not let it be read."""


def write_bytes(storage: Storage, directory: str, path: str, content: bytes) -> FileEntry:
    """Writes ``content`` as a new file, and flushes it.

    Where that fails half-way, a local file goes again, which was made new and is nobody else's.
    """
    digest = hashlib.sha256()
    whole = memoryview(content)
    name = f"{directory}/{path}"
    file = storage.create(name)
    try:
        for start in range(0, len(whole), _PIECE_BYTES):
            piece = whole[start : start + _PIECE_BYTES]
            digest.update(piece)
            file.write(piece)
        file.close()
    except BaseException:
        with suppress(Exception):  # What went wrong before is the one to tell.
            file.close()
        if storage.local_file(name) is not None:
            with suppress(Exception):
                storage.delete(name)
        raise
    return FileEntry(path=path, size_bytes=len(whole), sha256=digest.hexdigest())


def read_bytes(storage: Storage, name: str, *, limit_bytes: int = MOST_BYTES) -> bytes:
    """The content of a small file.

    Raises:
        DamageError: It cannot be read, or is far too large.
    """

    def read() -> bytes:
        pieces, size_bytes = [], 0
        with storage.open(name) as file:
            while piece := file.read(_PIECE_BYTES):
                size_bytes += len(piece)
                if size_bytes > limit_bytes:
                    raise DamageError(f"is larger than {limit_bytes:,} bytes")
                pieces.append(piece)
        return b"".join(pieces)

    return _read_patiently(storage, name, read)


def check_file(
    storage: Storage, directory: str, entry: FileEntry, copy_to: BinaryIO | None = None
) -> None:
    """Reads all of a file and compares it with what was written.

    Args:
        storage: Where it is.
        directory: The checkpoint's directory.
        entry: What the checkpoint says of the file.
        copy_to: Where to copy the content while it is read.

    Raises:
        DamageError: It is gone, cannot be read, or is not what was written.
    """
    name = f"{directory}/{entry.path}"

    def read() -> tuple[int, str]:
        digest = hashlib.sha256()
        size_bytes = 0
        if copy_to is not None:
            copy_to.seek(0)
            copy_to.truncate()
        with storage.open(name) as file:
            while size_bytes <= entry.size_bytes and (piece := file.read(_PIECE_BYTES)):
                digest.update(piece)
                size_bytes += len(piece)
                if copy_to is not None:
                    copy_to.write(piece)
        return size_bytes, digest.hexdigest()

    try:
        size_bytes, sha256 = _read_patiently(storage, name, read)
    except DamageError as problem:
        raise type(problem)(f"{entry.path} {problem}") from problem.__cause__
    if size_bytes != entry.size_bytes:
        raise DamageError(
            f"{entry.path} has {'more than ' if size_bytes > entry.size_bytes else ''}"
            f"{min(size_bytes, entry.size_bytes):,} bytes, and {entry.size_bytes:,} were written"
        )
    if sha256 != entry.sha256:
        raise DamageError(f"{entry.path} was changed: its SHA-256 is not the one of its content")


def _read_patiently(storage: Storage, name: str, read: Callable[[], _Content]) -> _Content:
    """Reads, and reads again where a service, not a file, may be what fails.

    Raises:
        UnreadableError: The service did not answer.
        DamageError: The file cannot be read.
    """
    for pause in (*_PAUSES_SECONDS, None):
        try:
            return read()
        except DamageError:
            raise
        except FileNotFoundError as error:
            raise DamageError("is gone") from error
        except Exception as error:  # Storages raise errors of many kinds.
            is_local = storage.local_file(name) is not None
            if is_local and getattr(error, "errno", None) not in OUTAGES:
                raise DamageError(_cannot_read(error)) from error
            if pause is None:
                raise UnreadableError(_cannot_read(error)) from error
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


class Fetched:
    """Files of a checkpoint as local ones: where they are, or copied to a temporary directory."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._good: dict[str, FileEntry] = {}
        self._copies: dict[str, str] = {}

    def check(self, entry: FileEntry) -> None:
        """Compares a file with what was written, and makes it ready for ``load``.

        Raises:
            DamageError: It differs.
        """
        if entry.path in self._good:
            return
        if self._storage.local_file(f"{self._directory}/{entry.path}") is not None:
            check_file(self._storage, self._directory, entry)
            self._good[entry.path] = entry
            return
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="sparkdl-checkpoint-")
        copy = os.path.join(self._temporary.name, entry.path.replace("/", "-"))
        with open(copy, "wb") as file:
            check_file(self._storage, self._directory, entry, file)
        self._good[entry.path], self._copies[entry.path] = entry, copy

    def load(self, path: str) -> Any:
        """What ``tensor_files.files_of`` was given, with all tensors in host memory.

        All of its files must have been found good. Those of an older format are pickled, and
        loaded with ``weights_only``.

        Raises:
            DamageError: It was written by something that is not of this package.
        """
        import torch

        try:
            if path.endswith(tensor_files.SUFFIX):
                return tensor_files.value_of(path, self._read)
            with self._open(path) as pickled:
                return torch.load(pickled, weights_only=True, map_location="cpu")
        except Exception as error:  # Its bytes are as they were written, but what wrote them?
            reason = f"{type(error).__name__}: {error!s:.{_MOST_CHARACTERS}}"
            raise DamageError(f"{path} cannot be loaded ({reason})") from error

    def _read(self, path: str) -> bytes:
        with self._open(path) as file:
            return file.read(self._good[path].size_bytes)

    def _open(self, path: str) -> BinaryIO:
        """Opens a file that was found good, if somebody has not exchanged it since."""
        self._good[path]  # What is not listed has no place in a checkpoint.
        copy = self._copies.get(path)
        if copy is not None:
            return open(copy, "rb")
        raw: Any = self._storage.open(f"{self._directory}/{path}")
        return io.BufferedReader(raw)

    def close(self) -> None:
        """Removes the copies."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


def _cannot_read(error: Exception) -> str:
    return f"cannot be read ({type(error).__name__}: {error})"

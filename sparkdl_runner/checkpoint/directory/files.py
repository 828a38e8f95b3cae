"""Writes and reads the files of a checkpoint, each with its size and its checksum."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from sparkdl_runner.base.storage_errors import failure_of
from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage
from sparkdl_runner.checkpoint.directory.memory import require_memory
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.directory.transient_errors import patiently
from sparkdl_runner.checkpoint.errors import DamageError, UnreadableError

# The limit for a manifest, a rank's list of its files, and an attempt's fence.
_MOST_BYTES = 64 << 20
# How much of a storage's time for trying again one file gets that cannot be read: after that an
# earlier checkpoint is taken.
_READ_SHARE = 1 / 15


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file's entry in a manifest."""

    path: str
    """Relative to the checkpoint's directory, with ``/`` between its parts."""
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: str, content: bytes) -> FileEntry:
        """The entry of a file with this content."""
        digest = hashlib.sha256(content).hexdigest()
        return cls(path=path, size_bytes=len(content), sha256=digest)


def read_file(
    storage: Storage,
    directory: str,
    path: str,
    *,
    limit_bytes: int = _MOST_BYTES,
    keep: bool = True,
    write: Callable[[int, memoryview], None] | None = None,
) -> tuple[bytes, FileEntry]:
    """Reads a file.

    Args:
        storage: Where it is.
        directory: The directory that it is in.
        path: Its path in there.
        limit_bytes: How large it may be.
        keep: Whether to return the content too; without it, no more than a piece is in memory.
        write: Gets each piece, and where in the file it begins. After a failure the storage is
            read once more, from the beginning.

    Raises:
        UnreadableError: The storage failed, and may answer later; or there is no memory for it.
        DamageError: The file is gone, cannot be read, or is too large.
    """

    if keep:
        require_memory(limit_bytes, path)

    def read() -> tuple[bytes, FileEntry]:
        digest, size_bytes = hashlib.sha256(), 0
        try:
            # A byte more than it may have, to see whether it has. What stays empty takes no memory.
            content = io.BytesIO(bytes(limit_bytes + 1 if keep else storage.piece_bytes))
            with storage.open(f"{directory}/{path}") as file, content.getbuffer() as memory:
                while size_bytes <= limit_bytes:
                    begin = size_bytes if keep else 0
                    with memory[begin : begin + storage.piece_bytes] as piece:
                        count = file.readinto(piece) or 0
                        with piece[:count] as filled:
                            digest.update(filled)
                            if write is not None:
                                write(size_bytes, filled)
                    if not count:
                        break
                    size_bytes += count
        except UnreadableError:
            raise  # There is no room for what was read.
        except MemoryError:
            raise UnreadableError(f"there is no memory for {path}") from None
        except FileNotFoundError:
            raise DamageError(f"{path} is gone") from None
        except Exception as error:  # Storages raise errors of many kinds.
            is_damage = storage.is_local and not failure_of(error).is_transient
            kind = DamageError if is_damage else UnreadableError
            raise kind(f"{path} cannot be read ({type(error).__name__}: {error})") from error
        if size_bytes > limit_bytes:
            raise DamageError(f"{path} is larger than {limit_bytes:,} bytes")
        entry = FileEntry(path=path, size_bytes=size_bytes, sha256=digest.hexdigest())
        content.truncate(size_bytes if keep else 0)
        return content.getvalue(), entry

    return patiently(storage, read, retry_seconds=storage.retry_seconds * _READ_SHARE)


def read_entry(
    storage: Storage,
    directory: str,
    entry: FileEntry,
    *,
    keep: bool = True,
    write: Callable[[int, memoryview], None] | None = None,
) -> bytes:
    """Reads a file that a manifest lists, and compares it with what was written.

    Args:
        storage: Where it is, unless it is in memory.
        directory: The checkpoint's directory.
        entry: What the manifest says of it.
        keep: As in ``read_file``.
        write: The same.

    Raises:
        DamageError: It is gone, cannot be read, or is not what was written.
    """
    if path := storage.copies.paths.get(entry.sha256):
        try:
            content = read_entry(_Memory(path), directory, entry, keep=keep, write=write)
            storage.copies.keep(entry.sha256)
            return content
        except (DamageError, OSError) as problem:
            warnings.warn(f"{directory} is not read from memory: {problem}.", stacklevel=2)
    size_bytes = entry.size_bytes
    content, actual = read_file(
        storage, directory, entry.path, limit_bytes=size_bytes, keep=keep, write=write
    )
    if actual.size_bytes != size_bytes:
        raise DamageError(
            f"{entry.path} has {actual.size_bytes:,} bytes, and {size_bytes:,} were written"
        )
    if actual != entry:
        raise DamageError(f"{entry.path} was changed: its SHA-256 is not the one of its content")
    return content


class _Memory(LocalStorage):
    """One file, in memory."""

    retry_seconds = 0.0

    def __init__(self, path: str) -> None:
        super().__init__("", "memory", poll_seconds=0.0)
        self._file = path

    def open(self, name: str) -> io.FileIO:
        return io.FileIO(self._file)

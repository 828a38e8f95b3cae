"""Reads files that another user may have put there, after checks of their kind and size.

In a folder that others write, a name may stand for a pipe, on which ``open`` waits for ever, for a
device, or for a file of any size; a path that is listed may lead out of the folder; and JSON may be
nested so deeply that Python gives up. What is opened here is checked once it is open, so that
nobody can exchange it in between.
"""

from __future__ import annotations

import functools
import json
import os
import stat
import types
import typing
from typing import TYPE_CHECKING, Any, TypeVar

from sparkdl_runner.base.open_file import arrow_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs


_Built = TypeVar("_Built")

# Lists and objects take some twenty times the memory of their text, if they are small or empty.
_MOST_CONTAINERS = 1_000_000
_SHOWN_CHARACTERS = 60


class ForeignFileError(ValueError):
    """A file is far larger than it should be, or holds content that this package never writes."""


class IrregularFileError(ForeignFileError, OSError):
    """A pipe, a device or a folder is in the place of a file."""


def open_regular(path: str | os.PathLike[str], flags: int = 0, *, dir_fd: int | None = None) -> int:
    """Opens a local file to be read.

    Args:
        path: The file.
        flags: Of ``os.open``, such as ``O_NOFOLLOW``.
        dir_fd: What a relative path begins at; the working directory by default.

    Returns:
        Its descriptor.

    Raises:
        OSError: It cannot be opened; an IrregularFileError if it is no regular file.
    """
    return open_with_state(path, flags, dir_fd=dir_fd)[0]


def open_with_state(
    path: str | os.PathLike[str], flags: int = 0, *, dir_fd: int | None = None
) -> tuple[int, os.stat_result]:
    """The same, and what the kernel says of the file."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=dir_fd)
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode):
        os.close(fd)
        raise IrregularFileError(f"{os.fspath(path)} is a pipe, a device or a folder, and no file")
    return fd, state


def open_input(filesystem: fs.FileSystem, path: str) -> pa.NativeFile:
    """Opens a file of any filesystem to be read at any place.

    Raises:
        OSError: It cannot be opened; an IrregularFileError if it is no regular file.
    """
    from pyarrow import fs

    if isinstance(filesystem, fs.PyFileSystem):
        # Arrow's own method would hide what the file can do beside the rest; see ``read_into``.
        return filesystem.handler.open_input_file(path)
    if not isinstance(filesystem, fs.LocalFileSystem):
        return filesystem.open_input_file(path)
    fd = open_regular(path)
    try:
        return arrow_file(fd)  # The very file that was looked at.
    finally:
        os.close(fd)


def read_into(stream: pa.NativeFile, start: int, memory: memoryview) -> int:
    """Reads a part of a file to memory; returns how many bytes there were.

    Several threads may read the same file.

    Args:
        stream: The file.
        start: Where the part begins.
        memory: Is filled.
    """
    if hasattr(stream, "fill"):  # A file of HDFS.
        filled: int = stream.fill(start, memory)
        return filled
    with stream.get_stream(start, len(memory)) as part:
        read: int = part.readinto(memory)
    return read


def read_small(filesystem: fs.FileSystem, path: str, limit_bytes: int) -> bytes:
    """The content of a file that should be small.

    Raises:
        OSError: It cannot be read.
        ForeignFileError: It is larger than ``limit_bytes``, or is no regular file.
    """
    with open_input(filesystem, path) as stream:
        size_bytes = stream.size()
        if size_bytes > limit_bytes:
            raise ForeignFileError(
                f"it has {size_bytes:,} bytes, and at most {limit_bytes:,} are read of such a file"
            )
        content: bytes = stream.read(size_bytes)
    return content


def read_whole(fd: int, limit_bytes: int) -> bytes:
    """The content of an open file that should be small; closes it.

    Raises:
        OSError: It cannot be read.
        ForeignFileError: It is larger than ``limit_bytes``.
    """
    with os.fdopen(fd, "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ForeignFileError(f"it has more than the {limit_bytes:,} bytes that are read of it")
    return content


def parse_json(text: bytes) -> Any:
    """Plain values from JSON in UTF-8.

    Raises:
        json.JSONDecodeError: It is no JSON, or was cut short.
        ForeignFileError: It is JSON that this package never writes: not in UTF-8, nested too
            deeply, of too many parts, with a key twice, or with NaN or infinity.
    """
    if text.count(b"[") + text.count(b"{") > _MOST_CONTAINERS:
        raise ForeignFileError(f"its JSON has more than {_MOST_CONTAINERS:,} lists and objects")
    try:
        return json.loads(
            text.decode(), object_pairs_hook=_no_key_twice, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise ForeignFileError(f"it is no text in UTF-8 ({error.reason})") from None
    except RecursionError:
        raise ForeignFileError("its JSON is nested too deeply") from None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ForeignFileError("a key of its JSON is there twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ForeignFileError(f"its JSON holds {name}, which is no number")


def build(kind: type[_Built], fields: Any) -> _Built:
    """A dataclass from the JSON of its fields, each of which must be of the type that it says.

    Whole numbers must fit into 64 bits. Other types than JSON has are left to the caller.

    Raises:
        ForeignFileError: A field is missing, unknown, or of another type.
    """
    hints = _hints_of(typing.cast("Any", kind))
    if not isinstance(fields, dict):
        raise ForeignFileError(f"{_shown(fields)} stands where keys and values should be")
    for name, value in fields.items():
        if name not in hints or not _is_of(value, hints[name]):
            raise ForeignFileError(f"{_shown(name)} is {_shown(value)}, which it cannot be")
    try:
        return kind(**fields)
    except TypeError as error:
        raise ForeignFileError(f"something is missing ({error})") from None


@functools.cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _is_of(value: Any, hint: Any) -> bool:
    if hint is int:
        return type(value) is int and -(2**63) <= value < 2**63
    if hint is float:
        return type(value) is float or _is_of(value, int)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_is_of(value, option) for option in inner)
    if origin in (list, tuple):
        return isinstance(value, (list, tuple)) and all(_is_of(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is_of(item, inner[1]) for item in value.values())
    return hint is Any or type(value) is hint


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def is_inside(path: str) -> bool:
    """Whether a listed path names a file in the folder that it is relative to, in the plain way."""
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") for part in parts)

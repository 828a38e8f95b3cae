"""Files that somebody else may have put there: looked at before they are read, and no further.

In a folder that others write, a name may stand for a pipe, on which ``open`` waits for ever, for a
device, or for a file of any size; a path that is listed may lead out of the folder; and JSON may be
nested so deeply that Python gives up. What is opened here is checked once it is open, so that
nobody can exchange it in between.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs


class ForeignFileError(ValueError):
    """A file is far larger than it should be, or holds what nobody of this package writes."""


def open_regular(path: str | os.PathLike[str], flags: int = 0, *, dir_fd: int | None = None) -> int:
    """Opens a local file to be read.

    Args:
        path: The file.
        flags: Of ``os.open``, such as ``O_NOFOLLOW``.
        dir_fd: What a relative path begins at; the working directory by default.

    Returns:
        Its descriptor.

    Raises:
        OSError: It cannot be opened, or is a pipe, a device or a folder.
    """
    # A pipe would otherwise be waited for until somebody writes.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "It is no regular file", os.fspath(path))
    return fd


def open_input(filesystem: fs.FileSystem, path: str) -> pa.NativeFile:
    """Opens a file of any filesystem to be read at any place.

    Raises:
        OSError: It cannot be opened, or is a pipe, a device or a folder.
    """
    from pyarrow import fs

    if not isinstance(filesystem, fs.LocalFileSystem):
        return filesystem.open_input_file(path)
    fd = open_regular(path)
    try:
        # The very file that was looked at, by Arrow's own reader, which needs no Python to read.
        return filesystem.open_input_file(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def read_small(filesystem: fs.FileSystem, path: str, limit_bytes: int) -> bytes:
    """The content of a file that should be small.

    Raises:
        OSError: It cannot be read, or is a pipe, a device or a folder.
        ForeignFileError: It is larger than ``limit_bytes``.
    """
    with open_input(filesystem, path) as stream:
        size_bytes = stream.size()
        if size_bytes > limit_bytes:
            raise ForeignFileError(
                f"it has {size_bytes:,} bytes, and at most {limit_bytes:,} are read of such a file"
            )
        content: bytes = stream.read(size_bytes)
    return content


def parse_json(text: bytes) -> Any:
    """Plain values from JSON in UTF-8.

    Raises:
        json.JSONDecodeError: It is no JSON, or was cut short.
        ForeignFileError: It is JSON that nobody of this package writes: not in UTF-8, nested too
            deeply, with a key twice, or with NaN or infinity.
    """
    try:
        return json.loads(
            text.decode(), object_pairs_hook=_no_key_twice, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise ForeignFileError(f"it is no text in UTF-8 ({error.reason})") from None
    except RecursionError:
        raise ForeignFileError("its JSON is nested too deeply") from None


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ForeignFileError("a key of its JSON is there twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ForeignFileError(f"its JSON holds {name}, which is no number")


def is_inside(path: str) -> bool:
    """Whether a listed path names a file in the folder that it is relative to, in the plain way."""
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") for part in parts)

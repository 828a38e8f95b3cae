"""One small file in a folder that others may write: no link is followed, no pipe waited for.

On a local disk, or one that is mounted, the file is new each time and its owner's alone.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sparkdl_runner.base.foreign_file import open_regular, read_small, read_whole

# More than half a million metrics.
MOST_BYTES = 64 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write(url: str, content: bytes) -> None:
    """Writes the file anew, in a folder that is made if it is not there.

    Raises:
        OSError: It cannot be written, or its folder is a link.
    """
    filesystem, path, is_local = _open(url)
    folder = path.rpartition("/")[0]
    if not is_local:
        filesystem.create_dir(folder)
        with filesystem.open_output_stream(path) as stream:
            stream.write(content)
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with _folder_of(path) as (above, name):
        part = f".{uuid.uuid4()}.part"
        try:
            with os.fdopen(os.open(part, _NEW, 0o600, dir_fd=above), "wb") as file:
                file.write(content)
            # A link of this name is replaced. The file that it leads to stays as it was.
            os.replace(part, name, src_dir_fd=above, dst_dir_fd=above)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=above)
            raise


def read(url: str) -> bytes:
    """The file's content.

    Raises:
        OSError: It is not there, cannot be read, or it or its folder is a link or no file.
        ForeignFileError: It is too large.
    """
    filesystem, path, is_local = _open(url)
    if not is_local:
        return read_small(filesystem, path, MOST_BYTES)
    with _folder_of(path) as (above, name):
        return read_whole(open_regular(name, os.O_NOFOLLOW, dir_fd=above), MOST_BYTES)


def delete(url: str) -> None:
    """Deletes the file.

    Raises:
        OSError: It is not there, or cannot be deleted.
    """
    filesystem, path, is_local = _open(url)
    if not is_local:
        filesystem.delete_file(path)
        return
    with _folder_of(path) as (above, name):
        os.unlink(name, dir_fd=above)


@contextmanager
def _folder_of(path: str) -> Iterator[tuple[int, str]]:
    """The folder that a file is in, open, so that nobody can exchange it; and the file's name."""
    folder, _, name = path.rpartition("/")
    above = os.open(folder, _FOLDER)
    try:
        yield above, name
    finally:
        os.close(above)


def _open(url: str) -> tuple[Any, str, bool]:
    from sparkdl_runner.base.filesystem import local_path, open_filesystem  # They may need pyarrow.

    path = local_path(url)
    if path is not None:
        return None, path, True
    return *open_filesystem(url), False

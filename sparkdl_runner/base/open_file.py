"""Reaches the very file or folder that a descriptor has open, whatever its path leads to by now.

Linux has a path for it. Elsewhere a file is read through Python; a folder has only its own path, in
whose place somebody may have put another.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_DESCRIPTORS = "/proc/self/fd"
_HAS_PATHS = os.path.isdir(_DESCRIPTORS)


def arrow_file(descriptor: int) -> pa.NativeFile:
    """A file of Arrow's to read what a descriptor has open; the descriptor stays the caller's.

    Raises:
        OSError: It cannot be opened.
    """
    import pyarrow as pa

    if _HAS_PATHS:
        return pa.OSFile(f"{_DESCRIPTORS}/{descriptor}")  # It needs no Python to read.
    file = os.fdopen(os.dup(descriptor), "rb")
    file.seek(0)  # Its place is the descriptor's.
    return pa.PythonFile(file, mode="r")


def path_of_folder(descriptor: int, path: str) -> str:
    """A path of an open folder; ``path``, by which it was opened, where the system has no other."""
    return f"{_DESCRIPTORS}/{descriptor}" if _HAS_PATHS else path


def real_path(descriptor: int, path: str) -> str:
    """Where an open file is, without links, that was opened by ``path``."""
    if _HAS_PATHS:
        return os.readlink(f"{_DESCRIPTORS}/{descriptor}")  # One call, whatever is above.
    return os.path.realpath(path)

"""A file of which some pieces are here, in memory or on the local disk, to be read by Arrow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

Pieces = Sequence[tuple[int, memoryview]]
"""The offset of each piece in its file, and its bytes."""


def in_memory(size_bytes: int, pieces: Pieces) -> pa.NativeFile:
    """A file of so many bytes that takes memory for its pieces only; zeros are elsewhere.

    The kernel keeps it, so that Arrow reads it as any local file, without Python.
    """
    return _filled(os.memfd_create("sparkdl-row-group"), size_bytes, pieces)


def on_disk(size_bytes: int, pieces: Pieces, folder: Path | None) -> pa.NativeFile:
    """The same without a name in a folder of a local disk.

    Raises:
        OSError: The disk does not take it.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        return _filled(os.dup(file.fileno()), size_bytes, pieces)


def _filled(descriptor: int, size_bytes: int, pieces: Pieces) -> pa.NativeFile:
    try:
        os.ftruncate(descriptor, size_bytes)
        for start, content in pieces:
            done = 0
            while done < len(content):
                done += os.pwrite(descriptor, content[done:], start + done)
        return pa.OSFile(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)

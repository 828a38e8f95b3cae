"""A remote row group that is here: a file of which some extents are in memory or on the disk."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.base.open_file import arrow_file

Extents = Sequence[tuple[int, memoryview]]
"""The offset of each extent in its file, and its bytes."""


class FetchedGroup:
    """The bytes of a row group that are wanted, in memory or on the local disk.

    They stay as long as this object or a file that it opened: lanes of one rank may each read a
    segment of the row group.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held by who fetches it; others wait."""
        self._metadata: pq.FileMetaData | None = None
        self._extents: Extents = ()
        self._stream: pa.NativeFile | None = None
        """Its file on the disk, if it is there."""

    @property
    def is_here(self) -> bool:
        """Whether somebody has fetched it."""
        return self._metadata is not None

    def fill(self, metadata: pq.FileMetaData, size_bytes: int, extents: Extents) -> None:
        """Gives it the footer of its file, that file's size, and what was fetched of it."""
        self._size_bytes, self._extents, self._metadata = size_bytes, extents, metadata

    def fill_from_disk(self, metadata: pq.FileMetaData, stream: pa.NativeFile) -> None:
        """Gives it the footer of its file, and a file on the disk with what was fetched of it."""
        self._stream, self._metadata = stream, metadata

    def open(self, **options: Any) -> pq.ParquetFile:
        """Opens its file for one reader, with options of ``pyarrow.parquet.ParquetFile``."""
        # Arrow reads at places that it names: readers of one file do not disturb each other.
        stream = self._stream
        if stream is None:
            stream = in_memory(self._size_bytes, self._extents)
            options["buffer_size"] = 0
        parquet = pq.ParquetFile(stream, metadata=self._metadata, **options)
        weakref.finalize(parquet, _nobody_else, self)
        return parquet


def _nobody_else(_: FetchedGroup) -> None:
    """Lets go of a row group that was kept for an open file."""


def in_memory(size_bytes: int, extents: Extents) -> pa.NativeFile:
    """A file of so many bytes whose extents stay where they are; zeros are elsewhere.

    Read without a buffer, Arrow asks once for each column chunk, and decodes it from where it lies:
    copies of large row groups cost as much time as decoding them.
    """
    return pa.PythonFile(_ExtentsFile(size_bytes, extents), mode="r")


def on_disk(
    size_bytes: int, extents: Iterable[tuple[int, memoryview]], folder: Path | None
) -> pa.NativeFile:
    """The same without a name in a folder of a local disk. Each extent is written before the next.

    Raises:
        OSError: The disk does not take it.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size_bytes)
        for start, content in extents:
            file.seek(start)
            file.write(content)
        file.flush()
        descriptor = os.dup(file.fileno())
    try:
        return arrow_file(descriptor)
    finally:
        os.close(descriptor)


class _ExtentsFile:
    """What Arrow asks of a file of Python's."""

    closed = False

    def __init__(self, size_bytes: int, extents: Extents) -> None:
        self._size_bytes, self._extents, self._place = size_bytes, extents, 0

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size_bytes}
        self._place = bases[whence] + offset
        return self._place

    def read_buffer(self, size: int) -> memoryview:
        begin = self._place
        end = self._place = max(begin, min(begin + size, self._size_bytes))
        for start, content in self._extents:
            if start <= begin and end <= start + len(content):
                return content[begin - start : end - start]
        found = bytearray(end - begin)
        for start, content in self._extents:
            first, last = max(begin, start), min(end, start + len(content))
            if first < last:
                found[first - begin : last - begin] = content[first - start : last - start]
        return memoryview(found)

    read = read_buffer

    def close(self) -> None:
        self.closed, self._extents = True, ()

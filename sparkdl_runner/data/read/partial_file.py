"""A file of which some pieces are here, in memory or on the local disk, to be read by Arrow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

Pieces = Sequence[tuple[int, memoryview]]
"""The offset of each piece in its file, and its bytes."""


def in_memory(size_bytes: int, pieces: Pieces) -> pa.NativeFile:
    """A file of so many bytes whose pieces stay where they are; zeros are elsewhere.

    Read without a buffer, Arrow asks once for each column chunk, and decodes it from where it lies:
    copies of large row groups cost as much time as decoding them.
    """
    return pa.PythonFile(_Pieces(size_bytes, pieces), mode="r")


def on_disk(
    size_bytes: int, pieces: Iterable[tuple[int, memoryview]], folder: Path | None
) -> pa.NativeFile:
    """The same without a name in a folder of a local disk. Each piece is written before the next.

    Raises:
        OSError: The disk does not take it.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size_bytes)
        for start, content in pieces:
            file.seek(start)
            file.write(content)
        file.flush()
        descriptor = os.dup(file.fileno())
    try:
        return pa.OSFile(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class _Pieces:
    """What Arrow asks of a file of Python's."""

    closed = False

    def __init__(self, size_bytes: int, pieces: Pieces) -> None:
        self._size_bytes, self._pieces, self._place = size_bytes, pieces, 0

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size_bytes}
        self._place = bases[whence] + offset
        return self._place

    def read_buffer(self, size: int) -> memoryview:
        begin = self._place
        end = self._place = max(begin, min(begin + size, self._size_bytes))
        for start, content in self._pieces:
            if start <= begin and end <= start + len(content):
                return content[begin - start : end - start]
        found = bytearray(end - begin)
        for start, content in self._pieces:
            first, last = max(begin, start), min(end, start + len(content))
            if first < last:
                found[first - begin : last - begin] = content[first - start : last - start]
        return memoryview(found)

    read = read_buffer

    def close(self) -> None:
        self.closed, self._pieces = True, ()

"""Byte ranges of a row group's columns in its file, and how to get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

from sparkdl_runner.data.remote.memory_pool import MemoryPool

_HOLE_BYTES = 1 << 20
"""Columns that are not wanted are read, too, if they take less: a request costs as much time."""


@dataclass(kw_only=True)
class ByteRange:
    """A part of a file, which is read from where it is."""

    start: int
    size: int
    read: Callable[[int, memoryview], None]
    """Reads what is at a place of the file, as much as a memory takes."""
    content: memoryview | None = None
    """All of it, where it is in memory already."""

    def read_to(self, memory: memoryview) -> None:
        """Reads all of it in one request."""
        if self.content is None:
            self.read(self.start, memory)
        else:
            memory[:] = self.content

    def passing(self, pool: MemoryPool) -> Iterator[tuple[int, memoryview]]:
        """Places and contents, one after the other: the next one takes the memory of the last."""
        if self.content is not None:
            yield self.start, self.content
            return
        with pool.passing(self.size) as memory:
            for done in range(0, self.size, max(1, len(memory))):
                some = memory[: self.size - done]
                self.read(self.start + done, some)
                yield self.start + done, some


def column_ranges(
    metadata: pq.FileMetaData, index: int, names: Sequence[str]
) -> list[tuple[int, int]]:
    """The byte ranges of the wanted columns of a row group in their file: starts and sizes."""
    group = metadata.row_group(index)
    wanted = set(names)
    chunks = []
    for leaf in range(group.num_columns):
        chunk = group.column(leaf)
        path = chunk.path_in_schema
        if path in wanted or any(path.startswith(f"{name}.") for name in wanted):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            chunks.append((start, start + chunk.total_compressed_size))
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(chunks):
        if ranges and start - ranges[-1][1] <= _HOLE_BYTES:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
    return [(start, end - start) for start, end in ranges]

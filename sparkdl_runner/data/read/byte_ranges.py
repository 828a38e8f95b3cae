"""Byte ranges of a row group's columns in its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow.parquet as pq

_HOLE_BYTES = 1 << 20
"""Columns that are not wanted are read, too, if they take less: a request costs as much time."""


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


def cut(ranges: Iterable[tuple[int, int]], most: int) -> Iterator[tuple[int, int]]:
    """The same bytes as starts and sizes of at most so many."""
    for start, size in ranges:
        for begin in range(start, start + size, most):
            yield begin, min(most, start + size - begin)

"""What the footer of a Parquet file says of its row groups: their rows, bytes, nulls and values."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from sparkdl_runner.data.parquet.leaves import Columns
from sparkdl_runner.data.parquet.sizes import bytes_in_chunk

_MISCOUNTS = re.compile(r"parquet-cpp(-arrow)? version [1-4]\.")
"""Writers whose counts of nulls may be wrong: Arrow before its version 5."""


_Decoded = dict[str, list[int | None]]
_NONE_VARIABLE: _Decoded = {}


@dataclass(kw_only=True)
class RowGroupFacts:
    """What footers say of the row groups of files, one after the other.

    A folder may have a hundred thousand files: so there are no objects of each.
    """

    counts: list[int] = field(default_factory=list)
    """Row groups of each file."""
    rows: list[int] = field(default_factory=list)
    """Of each row group."""
    size_bytes: list[int] = field(default_factory=list)
    """Of each row group, encoded but not compressed."""
    column_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Of all row groups of a column, encoded but not compressed."""
    null_counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Of the row groups whose statistics count them."""
    uncounted: set[str] = field(default_factory=set)
    """Columns whose nulls are not counted in some row group."""
    single_values: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """For each column, the value of each row group that holds only one value."""
    decoded_bytes: list[_Decoded] = field(default_factory=list)
    """For each file and column of variable size, the bytes of its values in each row group, once
    decoded; None where the footer does not know them."""

    def add(self, metadata: pq.FileMetaData, columns: Columns) -> None:
        """Adds the row groups of a file.

        Raises:
            IndexError: One of them lacks a column.
        """
        uncounted = columns.nested
        counts_nulls = not _MISCOUNTS.match(metadata.created_by or "")
        decoded = {name: [] for name in columns.widths} if columns.widths else _NONE_VARIABLE
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            rows = group.num_rows
            self.rows.append(rows)
            self.size_bytes.append(group.total_byte_size)
            chunks = [group.column(leaf) for leaf in range(len(columns.owners))]
            for chunk, name in zip(chunks, columns.owners, strict=True):
                self.column_bytes[name] += chunk.total_uncompressed_size
                if name in uncounted:
                    continue
                statistics = chunk.statistics
                if counts_nulls and statistics is not None and statistics.has_null_count:
                    self.null_counts[name] += statistics.null_count
                else:
                    uncounted = uncounted | {name}
                if rows > 1 and statistics is not None and statistics.has_min_max:
                    lowest = statistics.min_raw
                    if lowest == statistics.max_raw:
                        self.single_values[name].append(lowest)
            if decoded:
                for name, size in decoded_bytes_of(chunks, columns).items():
                    decoded[name].append(size)
        self.counts.append(metadata.num_row_groups)
        self.decoded_bytes.append(decoded)
        self.uncounted |= uncounted

    def extend(self, other: RowGroupFacts) -> None:
        """Adds those of further files."""
        self.counts += other.counts
        self.rows += other.rows
        self.size_bytes += other.size_bytes
        self.decoded_bytes += other.decoded_bytes
        self.uncounted |= other.uncounted
        for name, size in other.column_bytes.items():
            self.column_bytes[name] += size
        for name, count in other.null_counts.items():
            self.null_counts[name] += count
        for name, values in other.single_values.items():
            self.single_values[name] += values

    def null_count(self, name: str) -> int | None:
        """A column's nulls in all files; None if some footer does not know them."""
        return None if name in self.uncounted else self.null_counts[name]

    def is_clustered(self, name: str) -> bool:
        """Whether most row groups hold one value each of a column, and not all the same."""
        values = self.single_values[name]
        return 2 * len(values) > sum(rows > 1 for rows in self.rows) and len(set(values)) > 1


def may_be_infinite(metadata: pq.FileMetaData, columns: Columns) -> frozenset[str]:
    """Columns of float32, also in lists, in which the footer does not rule out an infinite value.

    If a value is NaN, writers give NaN as the maximum, or give no minimum and maximum.
    """
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return frozenset(
        name
        for group in groups
        for leaf, name in enumerate(columns.owners)
        if _may_be_infinite(group.column(leaf))
    )


def _may_be_infinite(chunk: pq.ColumnChunkMetaData) -> bool:
    if chunk.physical_type != "FLOAT":
        return False
    statistics = chunk.statistics
    if statistics is not None and statistics.has_min_max:
        return not (math.isfinite(statistics.min_raw) and math.isfinite(statistics.max_raw))
    nulls = statistics.null_count if statistics is not None and statistics.has_null_count else 0
    return bool(chunk.num_values > nulls)


def decoded_bytes_of(
    chunks: Sequence[pq.ColumnChunkMetaData], columns: Columns
) -> dict[str, int | None]:
    """Bytes of the values of each column of variable size in one row group, once decoded.

    Args:
        chunks: All of the row group, one for each leaf.
        columns: Those of the file.

    Returns:
        By column; None where the footer does not know them.
    """
    sizes: dict[str, list[int | None]] = {name: [] for name in columns.widths}
    for chunk, name in zip(chunks, columns.owners, strict=True):
        if name in sizes:
            width = columns.widths[name][len(sizes[name])]
            sizes[name].append(bytes_in_chunk(chunk, width))
    known = {
        name: [size for size in leaf_sizes if size is not None]
        for name, leaf_sizes in sizes.items()
    }
    return {
        name: sum(known[name]) if len(known[name]) == len(leaf_sizes) else None
        for name, leaf_sizes in sizes.items()
    }

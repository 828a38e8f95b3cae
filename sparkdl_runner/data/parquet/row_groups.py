"""What the footer of a Parquet file says of its row groups: their rows, bytes, nulls and values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from sparkdl_runner.data.parquet.leaves import Columns
from sparkdl_runner.data.parquet.sizes import bytes_in_chunk

_MISCOUNTS = re.compile(r"parquet-cpp(-arrow)? version [1-4]\.")
"""Writers whose counts of nulls may be wrong: Arrow before its version 5."""


def facts_of_row_groups(metadata: pq.FileMetaData, columns: Columns) -> dict[str, Any]:
    """Fields of a ``Footer``: what it says of all row groups."""
    names, flat = columns.schema.names, columns.flat
    column_bytes = dict.fromkeys(names, 0)
    null_counts = {name: 0 if name in flat else None for name in names}
    single_values: dict[str, list[Any]] = {name: [] for name in names}
    decoded_bytes: dict[str, list[int | None]] = {name: [] for name in columns.widths}
    counts_nulls = not _MISCOUNTS.match(metadata.created_by or "")
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        rows = group.num_rows
        groups.append((rows, group.total_byte_size))
        chunks = [group.column(leaf) for leaf in range(len(columns.owners))]
        for chunk, name in zip(chunks, columns.owners, strict=True):
            column_bytes[name] += chunk.total_uncompressed_size
            so_far = null_counts[name]
            if so_far is not None:
                statistics = chunk.statistics
                known = counts_nulls and statistics is not None and statistics.has_null_count
                null_counts[name] = so_far + statistics.null_count if known else None
                if rows > 1 and statistics is not None and statistics.has_min_max:
                    lowest = statistics.min_raw
                    if lowest == statistics.max_raw:
                        single_values[name].append(lowest)
        if columns.widths:
            for name, size in decoded_bytes_of(chunks, columns).items():
                decoded_bytes[name].append(size)
    return {
        "groups": groups,
        "column_bytes": column_bytes,
        "null_counts": null_counts,
        "single_values": single_values,
        "decoded_bytes": decoded_bytes,
    }


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
    known = {name: [one for one in found if one is not None] for name, found in sizes.items()}
    return {
        name: sum(known[name]) if len(known[name]) == len(found) else None
        for name, found in sizes.items()
    }

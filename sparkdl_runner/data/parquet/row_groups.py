"""What the footer of a Parquet file says of its row groups: their rows, bytes, nulls and values."""

from __future__ import annotations

import re
from typing import Any

import pyarrow.parquet as pq

from sparkdl_runner.data.parquet.leaves import Columns
from sparkdl_runner.data.parquet.sizes import bytes_in_chunk

_MISCOUNTS = re.compile(r"parquet-cpp(-arrow)? version [1-4]\.")
"""Writers whose counts of nulls may be wrong: Arrow before its version 5."""


def facts_of_row_groups(metadata: pq.FileMetaData, columns: Columns) -> dict[str, Any]:
    """Fields of a ``Footer``: what it says of all row groups."""
    names, flat, widths = columns.schema.names, columns.flat, columns.widths
    column_bytes = dict.fromkeys(names, 0)
    null_counts = {name: 0 if name in flat else None for name in names}
    single_values: dict[str, list[Any]] = {name: [] for name in names}
    decoded_bytes: dict[str, list[int | None]] = {name: [] for name in widths}
    counts_nulls = not _MISCOUNTS.match(metadata.created_by or "")
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        rows = group.num_rows
        groups.append((rows, group.total_byte_size))
        sizes: dict[str, list[int | None]] = {name: [] for name in widths}
        for leaf, name in enumerate(columns.owners):
            chunk = group.column(leaf)
            column_bytes[name] += chunk.total_uncompressed_size
            if name in widths:
                width = widths[name][len(sizes[name])]
                sizes[name].append(bytes_in_chunk(chunk, width))
            so_far = null_counts[name]
            if so_far is not None:
                statistics = chunk.statistics
                known = counts_nulls and statistics is not None and statistics.has_null_count
                null_counts[name] = so_far + statistics.null_count if known else None
                if rows > 1 and statistics is not None and statistics.has_min_max:
                    lowest = statistics.min_raw
                    if lowest == statistics.max_raw:
                        single_values[name].append(lowest)
        for name, found in sizes.items():
            known_sizes = [size for size in found if size is not None]
            decoded_bytes[name].append(sum(known_sizes) if len(known_sizes) == len(found) else None)
    return {
        "groups": groups,
        "column_bytes": column_bytes,
        "null_counts": null_counts,
        "single_values": single_values,
        "decoded_bytes": decoded_bytes,
    }

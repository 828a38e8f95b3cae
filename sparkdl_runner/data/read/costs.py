"""What rows take in memory, and row groups that are partly read, by the manifest."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from sparkdl_runner.data.dataset.manifest import ColumnInfo, Manifest
from sparkdl_runner.data.decode.columns import Layout
from sparkdl_runner.data.order.defaults import DefaultOrder
from sparkdl_runner.data.order.plan import Order
from sparkdl_runner.tensors.arrays import is_list, leaf_of

LEAST_DECODED_BYTES = 64 << 10
"""Decoding fewer bytes at a time costs more for the call than for the values."""
PLACE_BYTES = 16
"""Bytes for each row in memory beside its values: its place in the order."""
_OFFSET_BYTES = 8
_BUFFER_BYTES = 32 << 10
"""Of each column of a row group that is partly read: what was read of the file, and decoders."""
_DICTIONARY_BYTES = 1 << 20
"""Writers make dictionaries no larger."""
_REPEATS = 1.5
"""Values that take so many times their size in the file were written by a dictionary."""


def default_order(manifest: Manifest, *, shuffle: bool = True) -> DefaultOrder:
    """The order that a data set has by default."""
    return DefaultOrder.of(
        manifest.row_groups.rows,
        row_bytes=row_bytes(manifest),
        open_group_bytes=open_group_bytes(manifest),
        shuffle=shuffle,
    )


def row_bytes(manifest: Manifest) -> int:
    """Bytes of a row of all columns, where rows are largest on average."""
    return max(1, math.ceil(sum(value_bytes(manifest, column) for column in manifest.columns)))


def value_bytes(manifest: Manifest, column: ColumnInfo) -> float:
    """Bytes of a column's value in the row group where they are largest on average."""
    inner = manifest.schema.field(column.name).type
    while is_list(inner):
        inner = inner.value_type
    leaf = leaf_of(column.number_type or inner, decimals="float64")
    lengths = [length for length in column.list_lengths if length is not None]
    is_number = column.hint is None or column.number_type is not None
    is_fixed = None not in column.list_lengths and is_number
    if is_fixed and not isinstance(leaf, str):
        return leaf.dtype.itemsize * math.prod(lengths)
    rows = max(1, manifest.rows)
    if column.decoded_bytes is None:  # An earlier version described it.
        return _OFFSET_BYTES + 2 * column.size_bytes / rows
    return _OFFSET_BYTES + max(column.group_row_bytes or 0, column.decoded_bytes / rows)


def open_group_bytes(manifest: Manifest, names: Collection[str] | None = None) -> int:
    """Bytes that a row group takes while it is partly read, at most.

    For each column a page, perhaps a dictionary, and buffers; and twice the rows that are decoded
    at a time: the reader keeps the last ones, and Arrow the levels of lists in them.

    The bytes of a remote row group are not counted here: they are on the local disk, or in
    ``MemoryLimit.files_bytes``.

    Args:
        manifest: Describes the data set.
        names: The columns that are read; all by default.
    """
    groups = manifest.row_groups
    whole = int(groups.size_bytes.sum())
    if not whole:
        return 1
    share, rows = int(groups.size_bytes.max()) / whole, max(1, manifest.rows)
    total = decoded_row = 0.0
    for column in manifest.columns:
        if names is not None and column.name not in names:
            continue
        size = column.size_bytes * share
        value = value_bytes(manifest, column)
        # Large pages leave holes in the allocator's memory, about as large as they are.
        large_page = manifest.page_rows * column.size_bytes / rows
        page = 2 * large_page if large_page > manifest.page_bytes else manifest.page_bytes
        if column.decoded_bytes is not None and value * rows > _REPEATS * column.size_bytes:
            page += _DICTIONARY_BYTES
        total += min(size, page) + min(size, _BUFFER_BYTES)
        decoded_row += value
    decoded = min(decoded_row * int(groups.rows.max()), max(LEAST_DECODED_BYTES, decoded_row))
    return max(1, int(total + 2 * decoded))


@dataclass(frozen=True, kw_only=True)
class DataCosts:
    """What the columns that are read take in memory."""

    row_bytes: int
    """Of one row while rows are shuffled."""
    batch_row_bytes: int
    """Of one row in a batch, where images are decoded and lists padded."""
    widest_bytes: int
    """Of one row of the widest column of numbers."""
    open_group_bytes: int
    """Of a row group that is partly read, at least."""
    mean_group_rows: int
    groups: int
    """Row groups that have rows."""
    is_local: bool
    """Whether the files are on a local disk."""
    largest_row: tuple[int, str] = (0, "")
    """The most bytes of a value in one column, where that is known, and the column."""

    @classmethod
    def of(cls, manifest: Manifest, layout: Layout, *, is_local: bool) -> DataCosts:
        """Those of a data set."""
        groups = int(np.count_nonzero(manifest.row_groups.rows))
        return cls(
            row_bytes=layout.row_bytes,
            batch_row_bytes=layout.batch_row_bytes,
            widest_bytes=max((output.row_bytes for output in layout.outputs), default=1),
            open_group_bytes=open_group_bytes(manifest, layout.names),
            mean_group_rows=max(1, manifest.rows // max(1, groups)),
            groups=groups,
            is_local=is_local,
            largest_row=max((manifest.column(n).most_row_bytes or 0, n) for n in layout.names),
        )

    def partly_read(self, order: Order, lanes: int) -> int:
        """Row groups that so many lanes of an order read a few rows of at a time, side by side."""
        # A lane begins and ends in the middle of a row group.
        of_lane = -(-int(order.lane_rows[0]) // self.mean_group_rows) + (order.lanes > 1)
        if min(of_lane, order.window_groups) * self.mean_group_rows <= order.block_rows:
            return 0  # A window that fits into a block is read row group by row group.
        # While a lane goes over to its next window, about half of that is open as well.
        most = -(-3 * lanes * order.window_groups // 2)
        return min(lanes * of_lane, most, self.groups + lanes - 1)

    def open_groups(self, order: Order, lanes: int) -> int:
        """Row groups that are open side by side: those, or one for each lane."""
        return self.partly_read(order, lanes) or min(lanes, self.groups)

    def open_bytes(self, order: Order, lanes: int) -> int:
        """Bytes of those row groups, at least."""
        return self.open_groups(order, lanes) * self.open_group_bytes

    def block_bytes(self, order: Order, lanes: int) -> int:
        """Bytes of the blocks that so many lanes use at a time, and of the next ones."""
        rows = min(int(order.lane_rows[0]), 2 * order.block_rows)
        return lanes * rows * (self.row_bytes + PLACE_BYTES)

    def batch_bytes(self, order: Order, lanes: int) -> int:
        """Bytes of a rank's batch."""
        return lanes * order.lane_batch * max(self.row_bytes, self.batch_row_bytes)

    def least_bytes(self, order: Order, lanes: int) -> int:
        """Bytes without which so many lanes of an order cannot be read."""
        batches = 2 * self.batch_bytes(order, lanes)
        return batches + self.open_bytes(order, lanes) + self.block_bytes(order, lanes)

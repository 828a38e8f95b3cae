"""Divides a memory budget into lanes, blocks, pages and chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl_runner.data.dataset.manifest import ColumnInfo, Manifest
from sparkdl_runner.data.decode.arrays import is_list, leaf_of
from sparkdl_runner.data.decode.columns import Layout
from sparkdl_runner.data.order.plan import Order

MOST_LANES = 8
"""Lanes that one rank reads side by side, where the budget allows."""
MOST_WINDOW_GROUPS = 32
"""Row groups that one lane reads side by side. A batch from so many has 9.7 of 10 values of a
column that the table is sorted by."""
MOST_BLOCK_ROWS = 1 << 17
"""Larger blocks mix no more row groups, and the order of their rows outgrows the cache."""
DEFAULT_BYTES = 512 << 20
_PLACE_BYTES = 16
"""Bytes for each row in memory beside its values: its place in the order."""
_PIECE_BYTES = 64 << 10
"""Decoding fewer bytes at a time costs more for the call than for the values."""
_MOST_PAGE_BYTES = 1 << 20
"""A row group that is partly read keeps a page of each column, which writers make up to 1 MiB,
or larger where values are long: they look at its size only after ``Manifest.page_rows`` rows."""
_OPEN_BUFFER_BYTES = 128 << 10
"""A buffer of each column beside the page."""
_DECODING_BYTES = 16 << 20
"""Memory of each decoding thread. Arrow uses a third at a time; its allocators keep the rest."""
_FILES_SHARE = 5
_OVERHEAD_BYTES = 20 << 20
"""Threads, code that is imported late, and what allocators keep: it counts in small budgets."""
_CHUNK_BYTES = 2 << 20
_PAGE_BYTES = 1 << 20


def row_bytes_of(manifest: Manifest, layout: Layout | None) -> int:
    """Bytes that a row takes in memory.

    All columns count, whether they are read or not, so that the order of rows does not depend on
    ``columns``. Only decoding to something larger, such as images, changes it.
    """
    rows = max(1, manifest.rows)
    total = sum(_column_bytes(manifest, column, rows) for column in manifest.columns)
    return max(1, int(total), 0 if layout is None else layout.row_bytes)


def _column_bytes(manifest: Manifest, column: ColumnInfo, rows: int) -> float:
    inner = manifest.schema.field(column.name).type
    while is_list(inner):
        inner = inner.value_type
    leaf = leaf_of(inner, decimals="float64")
    if isinstance(leaf, str) or None in column.list_lengths or column.hint is not None:
        return 8 + 2 * column.size_bytes / rows
    lengths = [length for length in column.list_lengths if length is not None]
    return leaf.dtype.itemsize * float(np.prod(lengths, dtype=np.float64))


def page_rows_for(row_bytes: int, page_bytes: int) -> int:
    """Rows of a page: a power of two, from 1 to 16,384, that takes up to ``page_bytes``."""
    return max(1, min(1 << 14, 1 << (max(1, page_bytes // row_bytes).bit_length() - 1)))


def open_group_bytes(manifest: Manifest) -> int:
    """Bytes that a row group takes while it is partly read, at most: a page of each column.

    The bytes of a remote row group are not counted here: they are on the local disk, or part of
    ``files_bytes``. So the order of rows is the same for local and for remote files.
    """
    groups = manifest.row_groups
    whole = int(groups.size_bytes.sum())
    if not whole:
        return 1
    share, rows = int(groups.size_bytes.max()) / whole, max(1, manifest.rows)
    total = 0.0
    for column in manifest.columns:
        size = column.size_bytes * share
        # A page is held as its values are, also where the file has it compressed.
        decoded = _column_bytes(manifest, column, rows) * int(groups.rows.max())
        page = manifest.page_rows * column.size_bytes / rows
        total += min(max(size, decoded), max(_MOST_PAGE_BYTES, page) + _OPEN_BUFFER_BYTES)
    return max(1, int(total))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The memory that ``memory_budget_bytes`` allows, on any number of ranks.

    Apart from a fixed part, half of the budget is for row groups that are partly read, those of a
    lane's window and of its next one, and a quarter for the blocks in use and the next ones. The
    rest is for rows being decoded, for batches made ahead, for ``files_bytes``, and for rounding.
    """

    memory_budget_bytes: int
    row_bytes: int
    open_group_bytes: int
    mean_group_rows: int
    most_bytes: int | None = None
    """What this rank's data may take, if the caller gave no ``memory_budget_bytes``. The order of
    rows must not depend on it: it is another one on another machine."""

    @classmethod
    def of(
        cls,
        memory_budget_bytes: int | None,
        manifest: Manifest,
        layout: Layout | None = None,
        *,
        most_bytes: int | None = None,
    ) -> Budget:
        """The budget for a data set, of whose columns the layout may make larger ones."""
        groups = manifest.row_groups
        return cls(
            memory_budget_bytes=memory_budget_bytes or DEFAULT_BYTES,
            row_bytes=row_bytes_of(manifest, layout),
            open_group_bytes=open_group_bytes(manifest),
            mean_group_rows=max(1, manifest.rows // max(1, int(np.count_nonzero(groups.rows)))),
            most_bytes=most_bytes if memory_budget_bytes is None else None,
        )

    def check_batch(self, rows: int, batch_row_bytes: int) -> None:
        """Raises a ValueError unless a rank's batch of so many rows has a place in it.

        Args:
            rows: Of the batch.
            batch_row_bytes: Of one row in a batch, where images are decoded.
        """
        batch_bytes = rows * max(self.row_bytes, batch_row_bytes)
        if self.memory_budget_bytes < 2 * batch_bytes:
            raise ValueError(
                f"memory_budget_bytes={self.memory_budget_bytes:,} is too little: a rank's batch "
                f"has {rows:,} rows and takes {batch_bytes:,} bytes in memory, and as much again "
                f"while it is put together, so {2 * batch_bytes:,} are needed. Give that much, or "
                "take smaller batches."
            )

    @property
    def reading_bytes(self) -> int:
        """The bytes that reading may take on this rank."""
        return min(self.memory_budget_bytes, self.most_bytes or self.memory_budget_bytes)

    @property
    def files_bytes(self) -> int:
        """The part for footers, and for remote row groups that are not yet decoded."""
        return self.reading_bytes // _FILES_SHARE

    def spare_bytes(self, order: Order, lanes: int) -> int:
        """Half of what so many lanes of an order leave of the part for row groups partly read.

        Allocators keep about as much again for a while. A lane that goes over to its next window
        has up to half of that open as well.
        """
        missing = self.memory_budget_bytes - self.reading_bytes
        return max(0, self._divided_bytes // 2 - self.open_bytes(order, lanes) - missing) // 2

    def open_bytes(self, order: Order, lanes: int) -> int:
        """Bytes of the row groups that so many lanes of an order read side by side."""
        of_lane = -(-int(order.lane_rows[0]) // self.mean_group_rows)
        return lanes * min(of_lane, 3 * order.window_groups // 2) * self.open_group_bytes

    @property
    def _divided_bytes(self) -> int:
        """Bytes for lanes and blocks together: the budget without its fixed part."""
        whole = self.memory_budget_bytes
        return max(whole // 2, whole - _OVERHEAD_BYTES)

    def threads(self, most: int) -> int:
        """Threads that may decode: up to ``most``, and as a quarter of the memory allows."""
        return max(1, min(most, self.reading_bytes // 4 // _DECODING_BYTES))

    def needed_bytes(self, order: Order, lanes: int) -> int:
        """About what reading takes with one thread: so many lanes of an order on one rank."""
        lane_rows = int(order.lane_rows[0])
        block_rows = min(lane_rows, 3 * order.block_rows // 2)
        blocks = 2 * block_rows * (self.row_bytes + _PLACE_BYTES)
        # A window that fits into its blocks is read row group by row group.
        groups = min(order.window_groups, -(-lane_rows // self.mean_group_rows))
        if groups * self.mean_group_rows <= block_rows:
            groups = 1
        batches = 4 * lanes * order.lane_batch * self.row_bytes
        return _DECODING_BYTES + batches + lanes * (blocks + groups * self.open_group_bytes)

    @property
    def most_lanes(self) -> int:
        """Lanes that one rank can read side by side: each takes at least a row group."""
        return max(1, min(MOST_LANES, self._divided_bytes // 2 // self.open_group_bytes))

    def bytes_for(self, lanes: int) -> int:
        """Bytes that reading so many lanes side by side takes."""
        return self.memory_budget_bytes * max(lanes, self.most_lanes) // self.most_lanes

    @property
    def block_rows(self) -> int:
        """Rows of a block, so that two of each of ``most_lanes`` take a quarter of the budget."""
        block_bytes = self._divided_bytes // 8 // self.most_lanes
        return max(1, min(MOST_BLOCK_ROWS, block_bytes // (self.row_bytes + _PLACE_BYTES)))

    @property
    def window_groups(self) -> int:
        """Row groups of a lane that are mixed: read side by side, or whole if they are small."""
        # While a lane goes over to its next window, about half of that is open as well.
        most_open = self._divided_bytes // 3 // self.most_lanes // self.open_group_bytes
        pieces = self.block_rows * self.row_bytes // _PIECE_BYTES
        side_by_side = min(MOST_WINDOW_GROUPS, most_open, pieces)
        return max(1, side_by_side, -(-self.block_rows // self.mean_group_rows))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of rows, pages and steps that one rank keeps in memory."""

    page_rows: int
    pages: int
    """All pages; those never used take no memory."""
    page_limit: int
    """Blocks are loaded ahead into up to so many pages."""
    chunk_steps: int
    part_bytes: int
    """Bytes of one column to decode at a time of a row group that is partly read: it keeps the last
    part, and Arrow the levels of lists in it, which take as much again."""

    @classmethod
    def of(
        cls,
        budget: Budget,
        order: Order,
        *,
        lanes: int,
        row_bytes: int,
        batch_row_bytes: int,
        threads: int,
        prefetch_batches: int | None,
    ) -> Sizes:
        """Sizes for a rank.

        Args:
            budget: What the rank may use.
            order: Of the loader.
            lanes: Lanes of the rank.
            row_bytes: Of one row while rows are shuffled.
            batch_row_bytes: Of one row in a batch, where images are decoded.
            threads: Those that decode row groups.
            prefetch_batches: Without it, batches are made ahead by size.
        """
        batch_bytes = lanes * order.lane_batch * batch_row_bytes
        chunk_bytes = min(_CHUNK_BYTES, budget.reading_bytes // 32)
        chunk_steps = max(1, chunk_bytes // batch_bytes)
        if prefetch_batches is not None:
            chunk_steps = max(1, min(chunk_steps, prefetch_batches // 2))
        # Small pages waste little where a lane ends in the middle of one.
        page_rows = page_rows_for(row_bytes, min(_PAGE_BYTES, budget.reading_bytes // 256))
        chunk_rows = chunk_steps * order.lane_batch
        block_rows = 3 * order.block_rows // 2 + order.window_groups
        lane_rows = int(order.lane_rows[0])
        # The most that the blocks of one chunk can take: its rows, the rest of its first and last
        # block, and for each block a page that is partly used.
        needed_rows = min(lane_rows, chunk_rows + 2 * block_rows)
        broken = 2 * chunk_rows // order.block_rows + 3
        needed = lanes * (needed_rows // page_rows + broken)
        decoding = threads * _DECODING_BYTES
        ahead = 4 * chunk_steps * batch_bytes
        page_bytes = page_rows * row_bytes
        left = budget.reading_bytes - decoding - ahead - budget.files_bytes
        # The blocks in use, and for each the next one, so that every thread has one to read. More
        # would only cost memory, and the time in which the kernel provides it.
        usual = order.block_rows // page_rows + 2
        next_ones = max(0, left - budget.open_bytes(order, lanes)) // page_bytes
        page_limit = min(
            max(1, left // page_bytes),
            max(lanes * usual, next_ones),
            (lanes + max(lanes, threads)) * usual,
        )
        return cls(
            page_rows=page_rows,
            pages=max(needed, page_limit) + 1,
            page_limit=page_limit,
            chunk_steps=chunk_steps,
            part_bytes=max(_PIECE_BYTES, min(_PAGE_BYTES, budget.reading_bytes // 512)),
        )

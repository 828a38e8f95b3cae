"""Divides a memory budget into lanes, blocks, pages and chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl_runner.data.dataset.manifest import ColumnInfo, Manifest
from sparkdl_runner.data.decode.arrays import is_list, leaf_of
from sparkdl_runner.data.decode.columns import Layout
from sparkdl_runner.data.order.plan import Order
from sparkdl_runner.data.read.arena import page_rows_for

MOST_LANES = 8
"""Lanes that one rank reads side by side, where the budget allows."""
DEFAULT_BYTES = 512 << 20
_DECODING_BYTES = 16 << 20
"""Memory of each decoding thread. Arrow uses a third at a time; its allocators keep the rest."""
_CHUNK_BYTES = 2 << 20
_PAGE_BYTES = 1 << 20


def row_bytes_of(manifest: Manifest, layout: Layout) -> int:
    """Bytes that a row takes in memory.

    All columns count, whether they are read or not, so that the order of rows does not depend on
    ``columns``. Only decoding to something larger, such as images, changes it.
    """
    rows = max(1, manifest.rows)
    total = sum(_column_bytes(manifest, column, rows) for column in manifest.columns)
    return max(1, int(total), layout.row_bytes)


def _column_bytes(manifest: Manifest, column: ColumnInfo, rows: int) -> float:
    inner = manifest.schema.field(column.name).type
    while is_list(inner):
        inner = inner.value_type
    leaf = leaf_of(inner, decimals="float64")
    if isinstance(leaf, str) or None in column.list_lengths or column.hint is not None:
        return 8 + 2 * column.size_bytes / rows
    lengths = [length for length in column.list_lengths if length is not None]
    return leaf.dtype.itemsize * float(np.prod(lengths, dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What ``memory_budget_bytes`` allows, on any number of ranks.

    A quarter of the budget is for the blocks in use and a quarter for the next ones. The rest is
    for rows being decoded, for batches made ahead, and for rounding.
    """

    memory_budget_bytes: int
    row_bytes: int
    largest_group_rows: int
    is_given: bool = True
    """Whether the caller gave ``memory_budget_bytes``; else it is the default for this data set."""

    @classmethod
    def of(cls, memory_budget_bytes: int | None, manifest: Manifest, layout: Layout) -> Budget:
        """The budget for a data set.

        Raises:
            ValueError: Not even one lane can be read within it.
        """
        groups = manifest.row_groups
        row_bytes = row_bytes_of(manifest, layout)
        largest = int(groups.rows.max()) if len(groups) else 1
        is_given = memory_budget_bytes is not None
        if memory_budget_bytes is None:
            memory_budget_bytes = max(DEFAULT_BYTES, 16 * largest * row_bytes)
        budget = cls(
            memory_budget_bytes=memory_budget_bytes,
            row_bytes=row_bytes,
            largest_group_rows=largest,
            is_given=is_given,
        )
        if memory_budget_bytes < budget.least_bytes:
            raise ValueError(
                f"memory_budget_bytes={memory_budget_bytes:,} is too little: the largest row group "
                f"has {budget.largest_group_rows:,} rows and takes {budget.group_bytes:,} bytes "
                f"in memory, so {budget.least_bytes:,} are needed. Give that much, or convert with "
                "a smaller parquet_row_group_size_bytes."
            )
        return budget

    @property
    def group_bytes(self) -> int:
        """Bytes of the largest row group, decoded."""
        return self.largest_group_rows * self.row_bytes

    @property
    def least_bytes(self) -> int:
        """The smallest budget that reads one lane."""
        return 4 * self.group_bytes

    def threads(self, most: int) -> int:
        """Threads that may decode: up to ``most``, and as a quarter of the budget allows."""
        return max(1, min(most, self.memory_budget_bytes // 4 // _DECODING_BYTES))

    @property
    def most_lanes(self) -> int:
        """Lanes that one rank can read side by side: each takes at least a row group."""
        quarter = self.memory_budget_bytes // 4
        return max(1, min(MOST_LANES, quarter // max(1, self.group_bytes)))

    def bytes_for(self, lanes: int) -> int:
        """Bytes that reading so many lanes side by side takes."""
        return self.memory_budget_bytes * max(lanes, self.most_lanes) // self.most_lanes

    @property
    def block_rows(self) -> int:
        """Rows of a block, so that ``most_lanes`` of them take a quarter of the budget."""
        return max(1, self.memory_budget_bytes // 4 // self.most_lanes // self.row_bytes)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of rows, pages and steps that one rank keeps in memory."""

    page_rows: int
    pages: int
    """All pages; those never used take no memory."""
    page_limit: int
    """Blocks are loaded ahead into up to so many pages."""
    chunk_steps: int

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
        chunk_bytes = min(_CHUNK_BYTES, budget.memory_budget_bytes // 32)
        chunk_steps = max(1, chunk_bytes // batch_bytes)
        if prefetch_batches is not None:
            chunk_steps = max(1, min(chunk_steps, prefetch_batches // 2))
        # Small pages waste little where a lane ends in the middle of one.
        page_rows = page_rows_for(row_bytes, min(_PAGE_BYTES, budget.memory_budget_bytes // 256))
        chunk_rows = chunk_steps * order.lane_batch
        block_rows = order.block_rows + budget.largest_group_rows
        lane_rows = int(order.lane_rows[0])
        # The most that the blocks of one chunk can take: its rows, the rest of its first and last
        # block, and for each block a page that is partly used.
        needed_rows = min(lane_rows, chunk_rows + 2 * block_rows)
        broken = chunk_rows // order.block_rows + 3
        needed = lanes * (needed_rows // page_rows + broken)
        decoding = threads * _DECODING_BYTES
        ahead = 4 * chunk_steps * batch_bytes
        page_bytes = page_rows * row_bytes
        page_limit = max(1, (budget.memory_budget_bytes - decoding - ahead) // page_bytes)
        # The blocks in use, and for each the next one, so that every thread has one to read. More
        # would only cost memory, and the time in which the kernel provides it.
        usual = max(order.block_rows, budget.largest_group_rows) // page_rows + 2
        page_limit = min(page_limit, (lanes + max(lanes, threads)) * usual)
        return cls(
            page_rows=page_rows,
            pages=max(needed, page_limit) + 1,
            page_limit=page_limit,
            chunk_steps=chunk_steps,
        )

"""Divides the memory of a rank's reading among its uses.

    files      footers, and remote row groups that are not yet decoded
    open       row groups that are partly read: pages, and the rows decoded last
    decoding   what each thread works with
    blocks     decoded rows that are shuffled: those in use, and later ones
    batches    four chunks: made, waiting, in use, and about to be freed

``open``, ``blocks`` and ``batches`` have a least size, which follows from the order of rows. What
the limit leaves beyond that makes reading faster: more threads, more rows decoded at a time, and
blocks loaded further ahead.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from sparkdl_runner.data.order.plan import Order
from sparkdl_runner.data.read.costs import LEAST_DECODED_BYTES, PLACE_BYTES, DataCosts
from sparkdl_runner.rank import control_group, world

DEFAULT_BYTES = 512 << 20
_SHARE = 4
"""The data may take a fourth of a rank's memory. The model, its gradients and torch need more."""
_FILES_SHARE, _FOOTERS_SHARE = 5, 24

_DECODING_BYTES = 16 << 20
"""Memory of each decoding thread. Arrow uses a third at a time; its allocators keep the rest."""
_OVERHEAD_BYTES = 16 << 20
"""Threads, code that is imported late, and what allocators keep: it counts in small limits."""
_CHUNK_BYTES = 2 << 20
_PAGE_BYTES = 1 << 20
_MOST_DECODED_BYTES = 1 << 20
"""Decoding more bytes of a column at a time leaves the processor's cache."""
_MOST_DECODED_ROWS = 1 << 15
_AHEAD_BYTES = 512 << 10
"""Bytes of a row group to read at a time: less costs more for the call than for the values, and
more costs the kernel more for new pages than it saves."""


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """The limits on the memory of a rank's process."""

    host_bytes: int
    container_bytes: int | None = None
    """The limit of the control group; None for none."""
    process_bytes: int | None = None
    """The limit of the process alone, which ``spark.executor.pyspark.memory`` sets."""
    ranks: int = 1
    """Ranks that share the host."""

    @classmethod
    def here(cls) -> MemoryFacts:
        """Those of this process."""
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        return cls(
            host_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            container_bytes=control_group.limit_bytes(),
            process_bytes=None if limit == resource.RLIM_INFINITY else limit,
            ranks=world.current_world().local_size if world.in_worker() else 1,
        )

    @property
    def rank_bytes(self) -> int:
        """All that a rank may have."""
        shared = min(self.host_bytes, self.container_bytes or self.host_bytes) // self.ranks
        return min(shared, self.process_bytes or shared)

    @property
    def data_bytes(self) -> int:
        """How many bytes the rank's data may take."""
        return self.rank_bytes // _SHARE


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """What reading may take in a rank's process. ``MemoryPlan`` says what it is for."""

    size_bytes: int
    rank_bytes: int
    """All that the rank may have."""
    is_given: bool
    """Whether the caller gave ``memory_budget_bytes``, and it must hold."""

    @classmethod
    def of(cls, memory_budget_bytes: int | None) -> MemoryLimit:
        """The caller's, or 512 MiB if a quarter of the rank's memory is not less."""
        facts = MemoryFacts.here()
        return cls(
            size_bytes=memory_budget_bytes or min(DEFAULT_BYTES, facts.data_bytes),
            rank_bytes=facts.rank_bytes,
            is_given=memory_budget_bytes is not None,
        )

    def files_bytes(self, *, is_local: bool) -> int:
        """What is for footers, and for remote row groups that are not yet decoded."""
        return self.size_bytes // (_FOOTERS_SHARE if is_local else _FILES_SHARE)


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Numbers of threads, rows, pages and steps by which a rank keeps to its limit."""

    threads: int
    page_rows: int
    pages: int
    """All pages of the arena; those never used take no memory."""
    page_limit: int
    """Blocks are loaded ahead into up to so many pages."""
    block_bytes: int
    """The memory of all blocks, if rows are no longer than described."""
    pages_together: int
    """Pages of blocks that are loaded together, so that more is read of a row group at a time."""
    chunk_steps: int
    whole_rows: int
    """Rows to decode at a time of a row group that is read whole: a multiple of ``page_rows``, or
    less than a page."""
    partial_rows: int
    """The same of one that is partly read. The reader keeps the last ones."""
    remote_bytes: int
    """What remote row groups may take beyond ``MemoryLimit.files_bytes``."""

    @classmethod
    def of(
        cls,
        limit: MemoryLimit,
        costs: DataCosts,
        order: Order,
        *,
        lanes: int,
        most_threads: int,
        threads: int | None = None,
        prefetch_batches: int | None = None,
    ) -> MemoryPlan:
        """The plan of a rank.

        Args:
            limit: What the rank may use.
            costs: Of the data set.
            order: Of the loader.
            lanes: Lanes of the rank.
            most_threads: That may decode.
            threads: The caller's number of them, if any.
            prefetch_batches: Without it, batches are made ahead by size.
        """
        size, row_bytes = limit.size_bytes, costs.row_bytes
        batch_bytes = lanes * order.lane_batch * costs.batch_row_bytes
        # Longer ones than blocks would have the first batch wait for more row groups.
        most_steps = max(1, order.block_rows // order.lane_batch)
        chunk_steps = max(1, min(_CHUNK_BYTES, size // 32) // batch_bytes)
        chunk_steps = min(chunk_steps, most_steps)
        if prefetch_batches is not None:
            chunk_steps = max(1, min(chunk_steps, prefetch_batches // 2))
        open_bytes = costs.open_bytes(order, lanes)
        files_bytes = limit.files_bytes(is_local=costs.is_local)
        fixed = min(_OVERHEAD_BYTES, size // 4) + files_bytes + open_bytes
        left = max(0, size - fixed - 4 * chunk_steps * batch_bytes)
        threads = threads or max(1, min(most_threads, left // 3 // _DECODING_BYTES))
        decoding = min(threads * _DECODING_BYTES, left // 2)
        left -= decoding
        fetched_bytes = 0 if costs.is_local else left // 2
        left -= fetched_bytes
        # Of the rest a third is for more rows of the open row groups, and two for blocks.
        streams = max(1, costs.open_groups(order, lanes))
        decoded_bytes = max(LEAST_DECODED_BYTES, left // 3 // streams // 2)
        most_rows = min(_MOST_DECODED_ROWS, _MOST_DECODED_BYTES // costs.widest_bytes)
        partial_rows = max(1, min(most_rows, decoded_bytes // row_bytes))
        if decoded_bytes > LEAST_DECODED_BYTES:
            left -= 2 * streams * (partial_rows * row_bytes - LEAST_DECODED_BYTES)
        # Small pages waste little where a lane ends in the middle of one.
        page_rows = page_rows_for(row_bytes, min(_PAGE_BYTES, size // 256))
        page_bytes = page_rows * (row_bytes + PLACE_BYTES)
        block_rows = min(order.block_rows, int(order.lane_rows[0]))
        usual = block_rows // page_rows + 2
        # Small row groups are read whole: what is left of each would stay in Arrow's memory.
        ahead_rows = min(_AHEAD_BYTES // row_bytes, costs.mean_group_rows)
        # A quarter more, since the last page of a block is not full.
        together = 5 * costs.partly_read(order, lanes) * ahead_rows // (4 * page_rows)
        # One half is used while the other is read.
        most_pages = 2 * max(lanes * usual, together)
        page_limit = max(lanes * usual, min(most_pages, left // page_bytes))
        whole_rows = max(1, min(most_rows, decoding // threads // 3 // row_bytes))
        if whole_rows >= page_rows:
            whole_rows -= whole_rows % page_rows
        return cls(
            threads=threads,
            page_rows=page_rows,
            pages=max(_pages_of_chunk(order, lanes, chunk_steps, page_rows), page_limit) + 1,
            page_limit=page_limit,
            # All lanes may come to the end of their blocks, and need the next ones, in one step.
            block_bytes=(max(page_limit, 2 * lanes * usual) + 1) * page_bytes,
            pages_together=max(lanes * usual, page_limit // 2),
            chunk_steps=chunk_steps,
            whole_rows=whole_rows,
            partial_rows=partial_rows,
            remote_bytes=fetched_bytes + max(0, left - page_limit * page_bytes) // 2,
        )


def page_rows_for(row_bytes: int, page_bytes: int) -> int:
    """Rows of a page: a power of two, from 1 to 16,384, that takes up to ``page_bytes``."""
    return max(1, min(1 << 14, 1 << (max(1, page_bytes // row_bytes).bit_length() - 1)))


def _pages_of_chunk(order: Order, lanes: int, chunk_steps: int, page_rows: int) -> int:
    """The most pages that the blocks of one chunk can take.

    They are its rows, the rest of its first and last block, and for each block a page that is
    partly used.
    """
    chunk_rows = chunk_steps * order.lane_batch
    block_rows = 3 * order.block_rows // 2 + order.window_groups
    needed_rows = min(int(order.lane_rows[0]), chunk_rows + 2 * block_rows)
    broken = 2 * chunk_rows // order.block_rows + 3
    return lanes * (needed_rows // page_rows + broken)

"""Loads the blocks of a rank's lanes into the arena, in the order in which they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import pyarrow as pa

from sparkdl_runner.data.decode.columns import Column, DenseColumn
from sparkdl_runner.data.order.plan import Block, IntArray, Order
from sparkdl_runner.data.read.arena import Arena
from sparkdl_runner.data.read.reader import RowGroupReader


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedBlock:
    """A block whose rows are in memory, or on their way there."""

    block: Block
    pages: IntArray
    order: IntArray
    """int64 ``[rows]``, the permutation of the block."""
    place: IntArray
    """int64 ``[rows]``, where the row that comes i-th lies in the arena."""
    variable: dict[str, list[list[pa.Array]]]
    """By column of variable length: the rows of each segment, in parts."""
    reads: list[Future[None]] = field(default_factory=list)

    def wait(self) -> None:
        """Waits for the rows; raises what reading them raised."""
        for read in self.reads:
            read.result()


_Piece = tuple[LoadedBlock, int, int, int, int]
"""Block, number of the segment in it, row of the block, first row of the row group, rows."""


class BlockLoader:
    """Loads ahead, as far as a number of pages allows.

    Blocks are loaded strictly in the order in which they are needed, so what is loaded ahead never
    stands in the way of what is needed first.
    """

    def __init__(
        self,
        *,
        order: Order,
        lanes: Sequence[int],
        columns: Sequence[Column],
        reader: RowGroupReader,
        arena: Arena,
        pool: Executor,
        page_limit: int,
    ) -> None:
        self._order = order
        self._lanes = lanes
        self._columns = columns
        self._reader = reader
        self._arena = arena
        self._pool = pool
        self._page_limit = page_limit
        self._coming: Iterator[tuple[int, Block]] = iter(())
        self._next: tuple[int, Block] | None = None
        self._loaded: dict[tuple[int, int], deque[LoadedBlock]] = {}
        self._reads: set[Future[None]] = set()

    def start(self, *, epoch: int, position: int, end_epoch: int | None, lane_end: int) -> None:
        """Sets what is to come.

        Args:
            epoch: The first epoch.
            position: Where in its lanes to begin.
            end_epoch: The epoch not to enter any more; None for no end.
            lane_end: Where in its lanes every epoch ends.
        """
        self._coming = self._blocks(epoch, position, end_epoch, lane_end)
        self._next = next(self._coming, None)

    def _blocks(
        self, epoch: int, position: int, end_epoch: int | None, lane_end: int
    ) -> Iterator[tuple[int, Block]]:
        while end_epoch is None or epoch < end_epoch:
            plan = self._order.epoch(epoch)
            blocks = [block for lane in self._lanes for block in plan.blocks(lane)]
            blocks.sort(key=lambda block: (block.position, block.lane))
            for block in blocks:
                if block.position + block.rows > position and block.position < lane_end:
                    yield epoch, block
            epoch, position = epoch + 1, 0

    def load(self, epoch: int, until: int) -> None:
        """Starts reading what is needed up to lane position ``until``, and what else fits."""
        by_group: dict[tuple[int, int], list[_Piece]] = {}
        while self._next is not None:
            block_epoch, block = self._next
            needed = block_epoch == epoch and block.position < until
            pages = self._arena.pages_in_use + self._arena.pages_for(block.rows)
            if not needed and pages > self._page_limit:
                break
            loaded = self._place(block_epoch, block)
            self._loaded.setdefault((block_epoch, block.lane), deque()).append(loaded)
            at = 0
            for number, (group, start, rows) in enumerate(block.segments):
                pieces = by_group.setdefault((block_epoch, group), [])
                pieces.append((loaded, number, at, start, rows))
                at += rows
            self._next = next(self._coming, None)
        self._reads = {read for read in self._reads if not read.done()}
        # One read for all blocks that a row group is shared by.
        for (_, group), pieces in by_group.items():
            read = self._pool.submit(self._read, group, pieces)
            self._reads.add(read)
            for piece in pieces:
                piece[0].reads.append(read)

    def _place(self, epoch: int, block: Block) -> LoadedBlock:
        pages = self._arena.take_pages(block.rows)
        order = self._order.block_order(epoch, block.lane, block.number, block.rows)
        return LoadedBlock(
            block=block,
            pages=pages,
            order=order,
            place=self._arena.row_index(pages, order),
            variable={
                column.name: [[] for _ in block.segments]
                for column in self._columns
                if not isinstance(column, DenseColumn)
            },
        )

    def _read(self, group: int, pieces: list[_Piece]) -> None:
        """Runs in the pool."""
        until = max(start + rows for _, _, _, start, rows in pieces)
        for first, length, decoded in self._reader.stream(
            group, self._columns, rows=self._arena.read_rows, until=until
        ):
            for loaded, number, at, start, rows in pieces:
                # What this part of the row group has of the piece, in rows of the row group.
                begin, end = max(first, start), min(first + length, start + rows)
                if begin >= end:
                    continue
                part = slice(begin - first, end - first)
                for column, values in zip(self._columns, decoded, strict=True):
                    if isinstance(column, DenseColumn):
                        self._arena.write(loaded.pages, at + begin - start, column, values, part)
                    else:
                        rows_of_part = values.slice(part.start, end - begin)
                        loaded.variable[column.name][number].append(rows_of_part)

    def blocks_of(self, epoch: int, lane: int, begin: int, end: int) -> list[LoadedBlock]:
        """The blocks that hold positions ``begin`` to ``end`` of a lane, ready to be read."""
        found = [
            loaded
            for loaded in self._loaded.get((epoch, lane), ())
            if loaded.block.position < end and loaded.block.position + loaded.block.rows > begin
        ]
        for loaded in found:
            loaded.wait()
        return found

    def release(self, epoch: int, until: int) -> None:
        """Gives back the memory of every block that ends at or before lane position ``until``."""
        for key in list(self._loaded):
            blocks = self._loaded[key]
            while blocks and (
                key[0] < epoch
                or (key[0] == epoch and blocks[0].block.position + blocks[0].block.rows <= until)
            ):
                self._arena.give_back(blocks.popleft().pages)
            if not blocks:
                del self._loaded[key]

    def stop(self) -> None:
        """Drops what was loaded ahead and waits for the reads under way."""
        for read in self._reads:
            read.cancel()
        for read in self._reads:
            if not read.cancelled():
                read.exception()
        for blocks in self._loaded.values():
            for loaded in blocks:
                self._arena.give_back(loaded.pages)
        self._loaded.clear()
        self._coming, self._next = iter(()), None

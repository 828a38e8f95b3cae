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
    """A block whose rows are in memory, or being read."""

    block: Block
    pages: IntArray
    order: IntArray
    """int64 ``[rows]``, the permutation of the block."""
    place: IntArray
    """int64 ``[rows]``, where in the arena the row is that is used i-th."""
    variable: dict[str, list[list[pa.Array]]]
    """By column of variable length: the rows of each segment, in parts."""
    reads: list[Future[None]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Where it ends in its lane."""
        return self.block.position + self.block.rows

    def rows(self, name: str) -> pa.Array:
        """``[rows]`` of a column of variable length, in the order in which they were read."""
        parts = [part for segment in self.variable[name] for part in segment]
        if len(parts) != 1:
            parts = [pa.concat_arrays(parts)]  # It would copy even a single one.
            self.variable[name] = [parts]
        return parts[0]

    def wait(self) -> None:
        """Waits for the rows; raises what reading them raised."""
        for read in self.reads:
            read.result()


_Piece = tuple[LoadedBlock, int, int, int, int]
"""Rows that a block takes from a row group: the block, the number of the segment in it, the
segment's first row in the block and in the row group, and its number of rows."""


@dataclass(kw_only=True)
class BlockLoader:
    """Loads blocks ahead, up to a number of pages.

    Blocks are loaded strictly in the order in which they are needed, so one that is loaded ahead
    never takes pages that an earlier one needs.
    """

    order: Order
    lanes: Sequence[int]
    columns: Sequence[Column]
    reader: RowGroupReader
    arena: Arena
    pool: Executor
    page_limit: int

    def __post_init__(self) -> None:
        self._coming: Iterator[tuple[int, Block]] = iter(())
        self._next: tuple[int, Block] | None = None
        self._loaded: dict[tuple[int, int], deque[LoadedBlock]] = {}
        self._reads: set[Future[None]] = set()

    def start(self, *, epoch: int, position: int, end_epoch: int | None, lane_end: int) -> None:
        """Begins at a position in the lanes of an epoch; every epoch ends at ``lane_end``."""
        self._coming = self._blocks(epoch, position, end_epoch, lane_end)
        self._next = next(self._coming, None)

    def _blocks(
        self, epoch: int, position: int, end_epoch: int | None, lane_end: int
    ) -> Iterator[tuple[int, Block]]:
        while end_epoch is None or epoch < end_epoch:
            plan = self.order.epoch(epoch)
            blocks = [block for lane in self.lanes for block in plan.blocks(lane)]
            blocks.sort(key=lambda block: (block.position, block.lane))
            for block in blocks:
                if block.position + block.rows > position and block.position < lane_end:
                    yield epoch, block
            epoch, position = epoch + 1, 0

    def load(self, epoch: int, until: int) -> None:
        """Starts reading all blocks up to lane position ``until``, and later ones that fit."""
        by_group: dict[tuple[int, int], list[_Piece]] = {}
        while self._next is not None:
            block_epoch, block = self._next
            needed = block_epoch == epoch and block.position < until
            pages = self.arena.pages_in_use + self.arena.pages_for(block.rows)
            if not needed and pages > self.page_limit:
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
        # A row group that several blocks share is read once.
        for (_, group), pieces in by_group.items():
            read = self.pool.submit(self._read, group, pieces)
            self._reads.add(read)
            for piece in pieces:
                piece[0].reads.append(read)

    def _place(self, epoch: int, block: Block) -> LoadedBlock:
        pages = self.arena.take_pages(block.rows)
        order = self.order.block_order(epoch, block.lane, block.number, block.rows)
        return LoadedBlock(
            block=block,
            pages=pages,
            order=order,
            place=self.arena.row_index(pages, order),
            variable={
                column.name: [[] for _ in block.segments]
                for column in self.columns
                if not isinstance(column, DenseColumn)
            },
        )

    def _read(self, group: int, pieces: list[_Piece]) -> None:
        """Runs in the pool."""
        until = max(start + rows for _, _, _, start, rows in pieces)
        for first, length, decoded in self.reader.stream(
            group, self.columns, rows=self.arena.read_rows, until=until
        ):
            for loaded, number, at, start, rows in pieces:
                # The rows of the piece that this part holds, counted within the row group.
                begin, end = max(first, start), min(first + length, start + rows)
                if begin >= end:
                    continue
                part = slice(begin - first, end - first)
                for column, values in zip(self.columns, decoded, strict=True):
                    if isinstance(column, DenseColumn):
                        self.arena.write(loaded.pages, at + begin - start, column, values, part)
                    else:
                        rows_of_part = values.slice(part.start, end - begin)
                        loaded.variable[column.name][number].append(rows_of_part)

    def blocks_of(self, epoch: int, lane: int, begin: int, end: int) -> list[LoadedBlock]:
        """The blocks that hold positions ``begin`` to ``end`` of a lane, ready to be read."""
        found = [
            loaded
            for loaded in self._loaded.get((epoch, lane), ())
            if loaded.block.position < end and loaded.end > begin
        ]
        for loaded in found:
            loaded.wait()
        return found

    def release(self, epoch: int, until: int) -> None:
        """Gives back the memory of every block that ends at or before lane position ``until``."""
        for key in list(self._loaded):
            blocks = self._loaded[key]
            while blocks and (key[0], blocks[0].end) <= (epoch, until):
                self.arena.give_back(blocks.popleft().pages)
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
                self.arena.give_back(loaded.pages)
        self._loaded.clear()
        self._coming, self._next = iter(()), None

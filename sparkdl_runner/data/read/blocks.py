"""Loads the blocks of a rank's lanes into the arena, in the order in which they are needed."""

from __future__ import annotations

import heapq
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.decode.columns import Column, DenseColumn
from sparkdl_runner.data.order.balance import balanced
from sparkdl_runner.data.order.plan import Block, Order, Piece
from sparkdl_runner.data.read.arena import Arena
from sparkdl_runner.data.read.loaded_block import LoadedBlock
from sparkdl_runner.data.read.memory_plan import MemoryPlan
from sparkdl_runner.data.read.reader import DecodedRows, RowGroupReader

_TASKS_OF_WHOLE_ROWS = 8
"""A task reads this share of the rows that may be decoded at a time, or one row group."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Target:
    """The destination of the rows of a piece."""

    loaded: LoadedBlock
    number: int
    """The number of the piece in its block."""
    at: int
    """The piece's first row in the block."""
    piece: Piece


@dataclass(kw_only=True, eq=False)
class _Reading:
    """A row group that is being read, in order, a few rows at a time."""

    coming: Iterator[DecodedRows]
    """The iterator of ``RowGroupReader.stream``."""
    until: int
    """The end of the last piece that was asked for."""
    decoded: DecodedRows | None = None
    """The last ones, of which a later piece may need some."""
    last: Future[None] | None = None
    """Reads the piece before the next one."""


_Work = list[tuple[_Reading, list[_Target]]]
"""Row groups, and the rows of each that are to be read on."""


@dataclass(kw_only=True)
class BlockLoader:
    """Loads blocks ahead, up to a number of pages.

    Blocks are loaded strictly in the order in which they are needed, so one that is loaded ahead
    never takes pages that an earlier one needs. Several are loaded together, so that more of each
    row group is read at a time.
    """

    order: Order
    lanes: Sequence[int]
    columns: Sequence[Column]
    reader: RowGroupReader
    arena: Arena
    pool: Executor
    plan: MemoryPlan

    def __post_init__(self) -> None:
        self._coming: Iterator[tuple[int, Block]] = iter(())
        self._next: tuple[int, Block] | None = None
        self._loaded: dict[tuple[int, int], deque[LoadedBlock]] = {}
        self._reads: set[Future[None]] = set()
        self._readings: dict[tuple[int, int], _Reading] = {}  # by epoch and stream
        self._variable_bytes = 0
        self._has_told = False
        self._lock = threading.Lock()

    def start(self, *, epoch: int, position: int, end_epoch: int | None, lane_end: int) -> None:
        """Begins at a position in the lanes of an epoch; every epoch ends at ``lane_end``."""
        self._coming = self._blocks(epoch, position, end_epoch, lane_end)
        self._next = next(self._coming, None)

    def _blocks(
        self, epoch: int, position: int, end_epoch: int | None, lane_end: int
    ) -> Iterator[tuple[int, Block]]:
        while end_epoch is None or epoch < end_epoch:
            plan = self.order.epoch(epoch)
            lanes = [plan.blocks(lane) for lane in self.lanes]
            for block in heapq.merge(*lanes, key=lambda block: (block.position, block.lane)):
                if block.position + block.rows > position and block.position < lane_end:
                    yield epoch, block
            epoch, position = epoch + 1, 0

    def load(self, epoch: int, until: int) -> None:
        """Starts reading all blocks up to lane position ``until``, and later ones that fit."""
        while self._next is not None:
            # One block may take more than what is usually loaded together.
            together = max(self.plan.pages_together, self.arena.pages_for(self._next[1].rows))
            after = self.arena.pages_in_use + together
            is_needed = self._is_needed(epoch, until)
            if not is_needed and (after > self.plan.page_limit or self._is_beyond_the_plan()):
                break
            # Later blocks have no more pages beside those that are needed than by themselves.
            self._load_together(epoch, until, min(after, self.plan.page_limit))

    def _is_beyond_the_plan(self) -> bool:
        """Whether rows that differ in length take more than was described; told once."""
        with self._lock:
            used_bytes = self._variable_bytes
        if used_bytes <= self.plan.block_bytes:
            return False
        if not self._has_told:
            self._has_told = True
            warnings.warn(
                "The rows that are shuffled take more than the "
                f"{self.plan.block_bytes:,} bytes that follow from the description of the data "
                "set: its texts or lists are longer than described. Describe the files again, by "
                "make_spark_converter, or give more memory to the rank.",
                stacklevel=2,
            )
        return True

    def _is_needed(self, epoch: int, until: int) -> bool:
        return self._next is not None and (self._next[0], self._next[1].position) < (epoch, until)

    def _load_together(self, epoch: int, until: int, pages: int) -> None:
        """Starts reading blocks until so many pages are in use, and all that are needed."""
        whole: dict[tuple[int, int], list[_Target]] = {}
        partly: dict[tuple[int, int], list[_Target]] = {}
        while self._next is not None:
            block_epoch, block = self._next
            after = self.arena.pages_in_use + self.arena.pages_for(block.rows)
            if not self._is_needed(epoch, until) and after > pages:
                break
            loaded = self._place(block_epoch, block)
            self._loaded.setdefault((block_epoch, block.lane), deque()).append(loaded)
            at = 0
            for number, piece in enumerate(block.pieces):
                target = _Target(loaded=loaded, number=number, at=at, piece=piece)
                if piece.is_whole:
                    whole.setdefault((block_epoch, piece.group), []).append(target)
                else:
                    partly.setdefault((block_epoch, piece.stream), []).append(target)
                at += piece.rows
            self._next = next(self._coming, None)
        work: _Work = [(self._reading_on(key, its), its) for key, its in partly.items()]
        # A row group that several blocks share is read once.
        for (_, group), targets in whole.items():
            until = max(target.piece.until for target in targets)
            work.append((self._open(group, self.plan.whole_rows, until), targets))
        self._submit(work)

    def _reading_on(self, key: tuple[int, int], targets: list[_Target]) -> _Reading:
        """Goes on reading a row group, of which each block takes a piece."""
        targets.sort(key=lambda target: target.piece.start)
        first, last = targets[0].piece, targets[-1].piece
        reading = self._readings.pop(key, None)
        if reading is None or first.start < reading.until:
            reading = self._open(first.group, self.plan.partial_rows, first.until)
        reading.until = last.start + last.rows
        if reading.until < last.until:
            self._readings[key] = reading
        return reading

    def _open(self, group: int, rows: int, until: int) -> _Reading:
        self.reader.read_ahead([group], self.columns)
        coming = self.reader.stream(group, self.columns, rows=min(rows, until), until=until)
        return _Reading(coming=coming, until=0)

    def _submit(self, work: _Work) -> None:
        for some in self._tasks(work):
            calls = [partial(self._read, reading, reading.last, its) for reading, its in some]
            read = self.pool.submit(_call_all, calls)
            self._reads.add(read)
            read.add_done_callback(self._reads.discard)
            for reading, targets in some:
                reading.last = read
                for target in targets:
                    target.loaded.reads.append(read)

    def _tasks(self, work: _Work) -> Iterator[_Work]:
        """Divides what is to be read among tasks: a task costs more than a small row group."""
        some: _Work = []
        rows = 0
        for reading, targets in work:
            some.append((reading, targets))
            rows += sum(target.piece.rows for target in targets)
            if rows >= self.plan.whole_rows // _TASKS_OF_WHOLE_ROWS:
                yield some
                some, rows = [], 0
        if some:
            yield some

    def _place(self, epoch: int, block: Block) -> LoadedBlock:
        return LoadedBlock(
            epoch=epoch,
            block=block,
            pages=self.arena.take_pages(block.rows),
            variable={
                column.name: [[] for _ in block.pieces]
                for column in self.columns
                if not isinstance(column, DenseColumn)
            },
            pieces_left=len(block.pieces),
        )

    def _read(self, reading: _Reading, before: Future[None] | None, targets: list[_Target]) -> None:
        """Runs in the pool, which began the piece before this one earlier."""
        if before is not None:
            before.result()
        end = max(target.piece.start + target.piece.rows for target in targets)
        decoded = reading.decoded
        while True:
            if decoded is not None:
                self._copy(decoded, targets)
                if decoded.end >= end:
                    break
            decoded = next(reading.coming)
        is_used_up = end >= max(target.piece.until for target in targets)
        reading.decoded = None if is_used_up or decoded.end == end else decoded
        if is_used_up:
            next(reading.coming, None)  # Lets the reader put its file back.
        for target in targets:
            self._shuffle_if_read(target.loaded)

    def _shuffle_if_read(self, loaded: LoadedBlock) -> None:
        """Shuffles a block after its last piece, in the thread that has just read that."""
        with self._lock:
            loaded.pieces_left -= 1
            if loaded.pieces_left:
                return
        block, is_kept = loaded.block, bool(loaded.variable)
        loaded.order, loaded.place = np.arange(block.rows if is_kept else 0), None
        if not self.order.shuffle:
            return
        order = loaded.order if is_kept else self.arena.ascending(block.rows)
        order = self.order.block_order(loaded.epoch, block.lane, block.number, order)
        if self.order.balance is not None:
            lengths = loaded.lengths(self.order.balance)
            order = balanced(order, lengths, block.position, self.order.lane_batch)
        loaded.place = self.arena.shuffle(loaded.pages, order)
        loaded.order = order if is_kept else loaded.order

    def _copy(self, decoded: DecodedRows, targets: list[_Target]) -> None:
        places: list[tuple[list[slice], slice]] = []
        for target in targets:
            loaded, piece = target.loaded, target.piece
            # Those that are rows of the piece, counted within the row group.
            begin = max(decoded.first, piece.start)
            end = min(decoded.end, piece.start + piece.rows)
            if begin >= end:
                continue
            rows = slice(begin - decoded.first, end - decoded.first)
            at = target.at + begin - piece.start
            places.append((self.arena.runs(loaded.pages, slice(at, at + end - begin)), rows))
            for name, values in self._variable(decoded.columns):
                array = values.slice(rows.start, end - begin)
                if end - begin < decoded.rows:  # A slice would keep all of them.
                    array = pa.concat_arrays([array])
                loaded.variable[name][target.number].append(array)
                self._count(loaded, array.nbytes)
        self.arena.write(decoded.columns, places)

    def _variable(self, decoded: Sequence[Any]) -> Iterator[tuple[str, pa.Array]]:
        """The rows of columns that differ in length, by name."""
        for column, values in zip(self.columns, decoded, strict=True):
            if not isinstance(column, DenseColumn):
                yield column.name, values

    def _count(self, loaded: LoadedBlock, size_bytes: int) -> None:
        with self._lock:
            loaded.variable_bytes += size_bytes
            self._variable_bytes += size_bytes

    def _give_back(self, loaded: LoadedBlock) -> None:
        self.arena.give_back(loaded.pages)
        self._count(loaded, -loaded.variable_bytes)

    def blocks_of(self, epoch: int, lane: int, begin: int, end: int) -> list[LoadedBlock]:
        """The blocks that hold positions ``begin`` to ``end`` of a lane, ready to be read."""
        blocks = [
            loaded
            for loaded in self._loaded.get((epoch, lane), ())
            if loaded.block.position < end and loaded.end > begin
        ]
        for loaded in blocks:
            loaded.wait()
        return blocks

    def release(self, epoch: int, until: int) -> None:
        """Gives back the memory of every block that ends at or before lane position ``until``."""
        self._is_beyond_the_plan()
        for key in list(self._loaded):
            blocks = self._loaded[key]
            while blocks and (key[0], blocks[0].end) <= (epoch, until):
                self._give_back(blocks.popleft())
            if not blocks:
                del self._loaded[key]
        for reading in [key for key in self._readings if key[0] < epoch]:
            del self._readings[reading]  # The epoch's tail was dropped.

    def stop(self) -> None:
        """Drops what was loaded ahead and waits for the reads under way."""
        self.reader.forget_ahead()
        under_way = tuple(self._reads)
        for read in under_way:
            read.cancel()
        for read in under_way:
            if not read.cancelled():
                read.exception()
        for blocks in self._loaded.values():
            for loaded in blocks:
                self._give_back(loaded)
        self._loaded.clear()
        self._readings.clear()
        self._coming, self._next = iter(()), None


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()

"""Gathers the rows of several steps at once, and cuts them into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl_runner.data.batches.origins import Origins
from sparkdl_runner.data.decode.columns import (
    CollatedColumn,
    DenseColumn,
    ImageColumn,
    Layout,
    PaddedColumn,
    VariableColumn,
)
from sparkdl_runner.data.decode.rows import take, words
from sparkdl_runner.data.order.permutation import IntArray
from sparkdl_runner.data.order.plan import Order, Tail
from sparkdl_runner.data.read.arena import Arena, Empty
from sparkdl_runner.data.read.blocks import BlockLoader
from sparkdl_runner.data.read.loaded_block import LoadedBlock
from sparkdl_runner.tensors.arrays import Array
from sparkdl_runner.tensors.ragged import Ragged, ragged


class Uncollated(NamedTuple):
    """Rows that become arrays batch by batch."""

    rows: pa.Array
    """``[rows]``, as they were kept."""
    collate: Callable[[pa.Array], dict[str, Array]]
    """See ``CollatedColumn``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """The rows of several consecutive steps.

    Attributes:
        epoch: Their epoch.
        step: The first of the steps.
        bounds: int64 ``[steps + 1]``; the batch of step i is rows ``bounds[i]`` up to, not
            including, ``bounds[i + 1]``.
        dense: ``[rows, *shape]`` by name.
        variable: By name, for each row a text, bytes or a list; or numbers ``[total]`` of rows that
            differ in length.
        encoded: By name, the bytes of each row's image, which is still to be decoded.
        row_mask: Bool ``[rows]``, which rows are real; None where all are.
        origins: Where the rows come from.
        skipped: What is wrong with each image that was skipped.
    """

    epoch: int
    step: int
    bounds: IntArray
    dense: Mapping[str, Array]
    variable: Mapping[str, list[Any] | Ragged | Uncollated]
    encoded: Mapping[str, Sequence[pa.Buffer | None]]
    row_mask: npt.NDArray[np.bool_] | None
    origins: Origins
    skipped: Sequence[str] = ()

    def variable_batch(self, index: int) -> dict[str, Any]:
        """Entries of one batch whose rows differ in length.

        Returns:
            By name: a list of ``str`` or ``bytes``, or of lists of them, or NumPy values
            ``[total]`` and, under ``<name>_offsets``, int64 ``[batch + 1]``.
        """
        begin, end = int(self.bounds[index]), int(self.bounds[index + 1])
        result: dict[str, Any] = {}
        for name, rows in self.variable.items():
            if isinstance(rows, Ragged):
                offsets = rows.offsets[begin : end + 1]
                result[name] = rows.numbers[offsets[0] : offsets[-1]]
                result[f"{name}_offsets"] = offsets - offsets[0]
            elif isinstance(rows, Uncollated):
                entries = rows.collate(rows.rows.slice(begin, end - begin))
                result |= {f"{name}{ending}": value for ending, value in entries.items()}
            else:
                result[name] = rows[begin:end]
        return result


@dataclass(frozen=True, kw_only=True)
class Chunker:
    """Makes the chunks of one rank."""

    order: Order
    layout: Layout
    lanes: Sequence[int]
    tail: Tail
    arena: Arena
    blocks: BlockLoader
    chunk_steps: int

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.order.steps(self.tail)

    def chunks(
        self, *, epoch: int, step: int, end_epoch: int | None, empty: Empty
    ) -> Iterator[Chunk]:
        """Yields chunks from one step on, through the epochs up to ``end_epoch``."""
        steps = self.steps
        if steps == 0:
            return
        lane_batch = self.order.lane_batch
        self.blocks.start(
            epoch=epoch,
            position=step * lane_batch,
            end_epoch=end_epoch,
            lane_end=steps * lane_batch,
        )
        # Until a lane ends, and the last lane is the shortest, the rows of a step lie side by side.
        # Later steps look for their rows one by one, and so are chunks of their own.
        full = int(self.order.lane_rows[-1]) // lane_batch
        while end_epoch is None or epoch < end_epoch:
            while step < steps:
                count = min(self.chunk_steps, (full if step < full else steps) - step)
                self.blocks.load(epoch, (step + count) * lane_batch)
                yield self._chunk(epoch, step, count, empty)
                step += count
                self.blocks.release(epoch, step * lane_batch)
                self.blocks.load(epoch, step * lane_batch)
            epoch, step = epoch + 1, 0
            self.blocks.release(epoch, 0)

    def _chunk(self, epoch: int, step: int, count: int, empty: Empty) -> Chunk:
        begin = step * self.order.lane_batch
        # The rows of blocks that these steps take from each lane, in order.
        used: list[list[tuple[LoadedBlock, slice]]] = []
        for lane in self.lanes:
            end = min(begin + count * self.order.lane_batch, int(self.order.lane_rows[lane]))
            blocks = self.blocks.blocks_of(epoch, lane, begin, end)
            used.append([(loaded, _taken(loaded, begin, end)) for loaded in blocks])
        bounds = np.arange(count + 1) * (len(self.lanes) * self.order.lane_batch)
        row_mask, kept = None, None
        if self.arena.lies_in_order and _rows_of(used) == bounds[-1]:
            places = [[(loaded.pages, taken) for loaded, taken in blocks] for blocks in used]
            dense = dict(self.arena.interleave(places, count, empty))
            row_mask = np.ones(int(bounds[-1]), dtype=np.bool_) if self.tail == "pad" else None
        else:
            flat = self._by_step(
                [[self._places(loaded, taken) for loaded, taken in blocks] for blocks in used],
                count,
            )
            real = flat >= 0
            if self.tail == "pad":
                row_mask, flat = real, np.maximum(flat, 0)
            elif not real.all():
                bounds = np.concatenate([[0], np.cumsum(real)])[bounds]
                kept = np.flatnonzero(real)
                flat = flat[kept]
            dense = dict(self.arena.gather(flat, empty))
        variable: dict[str, list[Any] | Ragged | Uncollated] = {}
        encoded: dict[str, list[pa.Buffer | None]] = {}
        for column in self.layout.columns:
            if isinstance(column, DenseColumn):
                continue
            if isinstance(column, ImageColumn):
                encoded[column.name] = self._encoded(column.name, used, count)
                continue
            rows = self._interleave(column, used, count)
            if isinstance(column, PaddedColumn):
                names = [output.name for output in column.outputs]
                dense.update(zip(names, column.finish(rows), strict=True))
            elif isinstance(column, CollatedColumn):
                variable[column.name] = Uncollated(rows, column.collate)
            else:
                variable[column.name] = entries(column, rows)
        if row_mask is not None and not row_mask.all():
            for values in dense.values():
                values[~row_mask] = 0
        return Chunk(
            epoch=epoch,
            step=step,
            bounds=bounds,
            dense=dense,
            variable=variable,
            encoded=encoded,
            row_mask=row_mask,
            origins=Origins(
                order=self.order,
                step=step,
                lanes=self.lanes,
                blocks=[[(loaded.block, loaded.order) for loaded, _ in blocks] for blocks in used],
                kept=kept,
            ),
        )

    def _places(self, loaded: LoadedBlock, taken: slice) -> IntArray:
        """int64 ``[rows]``, the places in the arena of rows of a block, in the order of use."""
        if loaded.place is not None:
            return loaded.place[taken]
        return self.arena.row_index(loaded.pages, np.arange(taken.start, taken.stop))

    def _by_step(self, lanes: list[list[IntArray]], count: int) -> IntArray:
        """Interleaves the rows of the lanes, step by step; -1 where a lane has ended."""
        size, nothing = self.order.lane_batch, np.empty(0, dtype=np.int64)
        index = np.empty((count, len(lanes), size), dtype=np.int64)
        for number, arrays in enumerate(lanes):
            rows = arrays[0] if len(arrays) == 1 else np.concatenate([*arrays, nothing])
            if len(rows) < count * size:
                rows = np.pad(rows, (0, count * size - len(rows)), constant_values=-1)
            index[:, number] = rows.reshape(count, size)
        return index.ravel()

    def _interleave(
        self,
        column: VariableColumn,
        used: list[list[tuple[LoadedBlock, slice]]],
        count: int,
    ) -> pa.Array:
        """Rows that differ in length: shuffles those of each lane, then joins them by step."""
        nothing = pa.nulls(0, column.kept_type)
        size = self.order.lane_batch
        lanes: list[pa.Array] = []
        for blocks in used:
            arrays = [self._rows(loaded, column.name, taken) for loaded, taken in blocks]
            missing = count * size - sum(map(len, arrays))
            if missing and self.tail == "pad":
                arrays.append(pa.nulls(missing, column.kept_type))
            lanes.append(arrays[0] if len(arrays) == 1 else pa.concat_arrays([nothing, *arrays]))
        if len(lanes) == 1:
            return lanes[0]
        # A lane's rows of one step lie side by side: one copy puts all where they belong.
        steps = range(0, count * size, size)
        return pa.concat_arrays([lane.slice(first, size) for first in steps for lane in lanes])

    def _rows(self, loaded: LoadedBlock, name: str, taken: slice) -> pa.Array:
        """Some of a block's rows of a column, in the order of use."""
        rows = loaded.rows(name)
        if self.order.shuffle:
            return take(rows, loaded.order[taken])
        return rows.slice(taken.start, taken.stop - taken.start)

    def _encoded(
        self, name: str, used: list[list[tuple[LoadedBlock, slice]]], count: int
    ) -> list[pa.Buffer | None]:
        """Images by step, without copying them; None for a null, or where a lane has ended."""
        buffers: list[pa.Buffer | None] = []
        lanes: list[list[IntArray]] = []
        for blocks in used:
            first = len(buffers)
            for loaded, taken in blocks:
                buffers += loaded.values(name, loaded.order[taken])
            lanes.append([np.arange(first, len(buffers))])
        flat = self._by_step(lanes, count)
        if self.tail != "pad":
            flat = flat[flat >= 0]
        buffers.append(None)  # It is the last one, and so has place -1.
        return [buffers[place] for place in flat.tolist()]


def entries(column: VariableColumn, rows: pa.Array) -> list[Any] | Ragged:
    """The entries of a batch for rows ``[n]`` of a column."""
    if column.kind == "ragged" and column.leaf is not None:
        lists = ragged(rows, (), column.leaf.dtype)
        writable = lists.numbers.flags.writeable  # torch warns of what is not
        return lists if writable else lists._replace(numbers=lists.numbers.copy())
    if column.depth == 0:
        return words(rows)
    values: list[Any] = rows.to_pylist()
    if not rows.null_count and not column.has_nulls:
        return values
    nothing = "" if column.kind == "text" else b""
    return [_without_nulls(value, nothing, column.depth) for value in values]


def _without_nulls(value: Any, nothing: str | bytes, depth: int) -> Any:
    """Replaces nulls in lists of ``depth`` levels by empty lists, and by ``nothing`` inside."""
    if depth == 0:
        return nothing if value is None else value
    return [_without_nulls(inner, nothing, depth - 1) for inner in value or ()]


def _rows_of(lanes: list[list[tuple[LoadedBlock, slice]]]) -> int:
    return sum(taken.stop - taken.start for blocks in lanes for _, taken in blocks)


def _taken(loaded: LoadedBlock, begin: int, end: int) -> slice:
    """Which entries of a block's order are positions ``begin`` to ``end`` of its lane."""
    start = loaded.block.position
    return slice(max(begin, start) - start, min(end, start + loaded.block.rows) - start)

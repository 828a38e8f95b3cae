"""Memory for decoded rows: reused pages, and one gather for many columns.

The decoded rows of all blocks in use are in one array per group of columns, so one index gathers a
batch from all blocks. Many scalar columns of equal width share one array: gathering a row of it
costs one memory access instead of one per column. A block takes any free pages and returns them
when it is used up, so memory neither grows nor fragments, and a page that is never needed is never
touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl_runner.data.decode.columns import DenseColumn, Layout, Output
from sparkdl_runner.data.order.permutation import IntArray
from sparkdl_runner.tensors.arrays import Array

Empty = Callable[[str, tuple[int, ...], np.dtype[Any]], Array]
"""Makes the array of a given name, shape and dtype that a gather fills."""

_FEW_BYTES = 48
"""Rows of so few bytes fit into the cache, a block of them: they are moved when a block is
shuffled."""
_FEW_COPIED_BYTES = 64 << 10
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Columns that share one array ``[rows, width]``."""

    rows: Array
    members: tuple[Output, ...]
    """One output of any shape, or several of shape (), one per column of the array."""

    @property
    def is_raw(self) -> bool:
        """Whether the array holds bits, since its columns may have several types of equal width."""
        return self.members[0].shape == ()


class Arena:
    """Pages of rows for all dense outputs of a layout.

    Args:
        layout: The outputs.
        pages: How many.
        page_rows: Rows of each: a power of two.
        shuffle: Whether rows are shuffled. If not, they are copied in runs, column by column.
    """

    def __init__(self, layout: Layout, *, pages: int, page_rows: int, shuffle: bool = True) -> None:
        self.page_rows = page_rows
        self._page_bits = page_rows.bit_length() - 1
        if page_rows != 1 << self._page_bits:
            raise ValueError(f"page_rows is {page_rows}; expected a power of two.")
        self._pages, self._free = pages, list(range(pages))[::-1]
        self._lock = threading.Lock()
        self._layout = layout
        self._groups: list[_Group] = []
        self._place: dict[str, tuple[int, int]] = {}
        self._scratch: dict[int, Array] = {}
        self._of_thread = threading.local()
        self._numbers = np.arange(page_rows)
        row_bytes = sum(output.row_bytes for output in layout.outputs)
        self.lies_in_order = not shuffle or row_bytes <= _FEW_BYTES
        """Whether a block's rows lie in the order of their use, once it has been shuffled."""
        capacity = pages * page_rows
        narrow: dict[int, list[Output]] = {}
        for output in layout.outputs:
            if output.shape == ():
                narrow.setdefault(output.dtype.itemsize, []).append(output)
            else:
                width = int(np.prod(output.shape, dtype=np.int64))
                self._add((output,), np.empty((capacity, width), dtype=output.dtype))
        for itemsize, outputs in narrow.items():
            kind, width = _UNSIGNED[itemsize], len(outputs)
            if not shuffle:  # Each column from end to end.
                self._add(tuple(outputs), np.empty((width, capacity), dtype=kind).T)
            elif itemsize * width <= _FEW_BYTES:
                for output in outputs:
                    self._add((output,), np.empty((capacity, 1), dtype=kind))
            else:
                self._add(tuple(outputs), np.empty((capacity, width), dtype=kind))
        self._sources: list[list[tuple[int, int]]] = [[] for _ in self._groups]
        self._find_sources()

    def _find_sources(self) -> None:
        """Finds which output of which column of the layout each column of a group is."""
        features = self._layout.features
        sources: dict[tuple[int, int], tuple[int, int]] = {}
        for number, column in enumerate(self._layout.columns):
            if not isinstance(column, DenseColumn):
                continue
            if column.feature is not None and features is not None:
                sources[self._place[features.name][0], column.feature] = (number, 0)
                continue
            for index, output in enumerate(column.outputs):
                sources[self._place[output.name]] = (number, index)
        for (group, _), source in sorted(sources.items()):
            self._sources[group].append(source)

    def _add(self, members: tuple[Output, ...], rows: Array) -> None:
        for place, output in enumerate(members):
            self._place[output.name] = (len(self._groups), place)
        self._groups.append(_Group(rows=rows, members=members))

    @property
    def pages_in_use(self) -> int:
        """Pages taken and not yet given back."""
        with self._lock:
            return self._pages - len(self._free)

    def pages_for(self, rows: int) -> int:
        """Pages that ``rows`` rows take."""
        return -(-rows // self.page_rows)

    def take_pages(self, rows: int) -> IntArray:
        """Takes pages for ``rows`` rows: int64 ``[pages]``. There must be enough."""
        count = self.pages_for(rows)
        with self._lock:
            if count > len(self._free):
                raise MemoryError(
                    f"{count} pages are needed and {len(self._free)} of {self._pages} are free."
                )
            return np.array([self._free.pop() for _ in range(count)], dtype=np.int64)

    def give_back(self, pages: IntArray) -> None:
        """Gives pages back."""
        with self._lock:
            self._free.extend(pages[::-1].tolist())

    def shuffle(self, pages: IntArray, order: IntArray) -> IntArray | None:
        """Shuffles the rows of a block that has these pages, and is read.

        Rows of few bytes are moved, while they are in the cache of the thread that decoded them:
        gathering them goes through memory from end to end then. Others are gathered from where
        they are, since moving them costs more than that saves.

        Args:
            pages: The block's pages.
            order: int64 ``[rows]``; entry i is the row to be used i-th.

        Returns:
            int64 ``[rows]``: where in the arena the row is that is used i-th; None if it is the
            i-th of the block now.
        """
        if not self.lies_in_order:
            return self.row_index(pages, order)
        runs = self.runs(pages, slice(0, len(order)))
        for group in self._groups:
            arrays = [group.rows[run] for run in runs]
            block, done = self._copy_of(arrays), 0
            for array in arrays:
                rows = order[done : done + len(array)]
                # mode="clip" writes straight into `out`; the index is known to be in range.
                np.take(block, rows, axis=0, out=array, mode="clip")
                done += len(array)
        return None

    def ascending(self, rows: int) -> IntArray:
        """int64 ``[rows]``, from 0 on, until this thread asks for the next."""
        result = self._memory("numbers", 8 * rows).view(np.int64)
        for first in range(0, rows, self.page_rows):
            page = result[first : first + self.page_rows]
            np.add(self._numbers[: len(page)], first, out=page)
        return result

    def _copy_of(self, arrays: list[Array]) -> Array:
        """Pages one after the other, until this thread asks for the next."""
        size = sum(array.nbytes for array in arrays)
        block = self._memory("rows", size).view(arrays[0].dtype).reshape(-1, arrays[0].shape[1])
        return np.concatenate(arrays, out=block)

    def _memory(self, name: str, size: int) -> Array:
        """Bytes that this thread uses again: new pages cost the kernel more time than copies."""
        memory: Array | None = getattr(self._of_thread, name, None)
        if memory is None or len(memory) < size:
            memory = np.empty(size, dtype=np.uint8)
            setattr(self._of_thread, name, memory)
        return memory[:size]

    def row_index(self, pages: IntArray, rows: IntArray) -> IntArray:
        """The places in the arena of rows ``[n]`` of a block with these pages."""
        # ``page_rows`` is a power of two, and a division would cost more than all else here.
        shifts = (pages - np.arange(len(pages))) * self.page_rows
        index: IntArray = np.take(shifts, rows >> self._page_bits, mode="clip")
        index += rows
        return index

    def write(
        self, decoded: Sequence[Any], places: Sequence[tuple[Sequence[slice], slice]]
    ) -> None:
        """Copies rows of all dense columns into blocks.

        Args:
            decoded: What each column of the layout was decoded to: ``[n, *shape]`` for each output.
            places: For each block, where they go (what ``runs`` returned), and which of the rows.
        """
        for group, sources in zip(self._groups, self._sources, strict=True):
            to, kind = group.rows, group.rows.dtype
            arrays = [decoded[column][output] for column, output in sources]
            if group.is_raw:
                arrays = [array.view(kind) for array in arrays]
            for runs, rows in places:
                done = rows.start
                for run in runs:
                    taken = slice(done, done + run.stop - run.start)
                    done = taken.stop
                    if len(arrays) == 1:
                        _copy(to[run], arrays[0][taken].reshape(to[run].shape))
                        continue
                    for place, array in enumerate(arrays):
                        to[run, place] = array[taken]

    def gather(self, index: IntArray, empty: Empty) -> Mapping[str, Array]:
        """Collects rows into new arrays.

        Args:
            index: int64 ``[n]``, rows of the arena.
            empty: Makes the arrays.

        Returns:
            ``[n, *shape]`` by name of output, each contiguous.
        """
        result: dict[str, Array] = {}
        count = len(index)
        for group in self._groups:
            members = group.members
            width = group.rows.shape[1]
            if len(members) == 1:
                output = members[0]
                whole = empty(output.name, (count, *output.shape), output.dtype)
                flat = whole.reshape(count, width).view(group.rows.dtype)
                # mode="clip" writes straight into `out`; the index is known to be in range.
                np.take(group.rows, index, axis=0, out=flat, mode="clip")
                result[output.name] = whole
                continue
            rows = self._scratch_for(group, count)
            np.take(group.rows, index, axis=0, out=rows, mode="clip")
            across = _across(group, count, empty)
            np.copyto(across, rows.T)
            result |= _by_name(group, across)
        return result

    def interleave(
        self, lanes: Sequence[Sequence[tuple[IntArray, slice]]], steps: int, empty: Empty
    ) -> Mapping[str, Array]:
        """Copies runs of rows that lie in order: for each step, as many of every lane.

        Args:
            lanes: For each lane, the pages of its blocks, and the rows of each block in turn.
            steps: How many.
            empty: Makes the arrays.

        Returns:
            ``[steps * lanes * rows, *shape]`` by name of output, each contiguous.
        """
        runs = [[run for block in lane for run in self.runs(*block)] for lane in lanes]
        count = sum(run.stop - run.start for lane in runs for run in lane)
        result: dict[str, Array] = {}
        for group in self._groups:
            width = group.rows.shape[1]
            if len(group.members) == 1:
                (output,) = group.members
                whole = empty(output.name, (count, *output.shape), output.dtype)
                result[output.name] = whole
                by_lane = whole.view(group.rows.dtype).reshape(steps, len(lanes), -1, width)
            else:
                across = _across(group, count, empty)
                result |= _by_name(group, across)
                by_lane = np.moveaxis(across.reshape(width, steps, len(lanes), -1), 0, 3)
            for number, lane in enumerate(runs):
                _fill(by_lane[:, number], [group.rows[run] for run in lane])
        return result

    def runs(self, pages: IntArray, rows: slice) -> list[slice]:
        """The places of a block's rows in the arena; neighbouring pages share one slice."""
        runs: list[slice] = []
        at = rows.start
        while at < rows.stop:
            page, offset = divmod(at, self.page_rows)
            count = min(self.page_rows - offset, rows.stop - at)
            begin = int(pages[page]) * self.page_rows + offset
            at, end = at + count, begin + count
            if runs and runs[-1].stop == begin:
                begin = runs.pop().start
            runs.append(slice(begin, end))
        return runs

    def _scratch_for(self, group: _Group, count: int) -> Array:
        """Memory ``[count, width]`` that only this gather uses."""
        key = group.rows.dtype.itemsize
        scratch = self._scratch.get(key)
        if scratch is None or len(scratch) < count:
            scratch = self._scratch[key] = np.empty((count, group.rows.shape[1]), group.rows.dtype)
        return scratch[:count]


def _across(group: _Group, count: int, empty: Empty) -> Array:
    """Memory ``[members, count]`` for rows of a group, each column from end to end."""
    kind = group.rows.dtype
    # No column can have such a name.
    return empty(f"\0{kind.itemsize} bytes", (len(group.members), count), kind)


def _by_name(group: _Group, across: Array) -> dict[str, Array]:
    """The columns of a group, of what ``_across`` made."""
    return {member.name: across[n].view(member.dtype) for n, member in enumerate(group.members)}


def _fill(steps: Array, runs: list[Array]) -> None:
    """Copies runs of rows, one after the other, into ``[steps, rows of a step, width]``."""
    size, done = steps.shape[1], 0
    for rows in runs:
        while len(rows):
            step, at = divmod(done, size)
            whole = 0 if at else len(rows) // size
            count = whole * size or min(size - at, len(rows))
            if whole:
                _copy(steps[step : step + whole], rows[:count].reshape(whole, size, -1))
            else:
                _copy(steps[step, at : at + count], rows[:count])
            rows, done = rows[count:], done + count


def _copy(to: Array, rows: Array) -> None:
    """Copies rows. NumPy lets another thread in meanwhile, which for few bytes takes longer."""
    are_plain = to.dtype == rows.dtype and to.flags.c_contiguous and rows.flags.c_contiguous
    if are_plain and 0 < rows.nbytes <= _FEW_COPIED_BYTES:
        to.reshape(-1).view(np.uint8).data[:] = rows.reshape(-1).view(np.uint8).data
    else:
        to[...] = rows

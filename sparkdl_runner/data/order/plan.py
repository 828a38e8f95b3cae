"""The order of rows: pure functions of row counts, seed, epoch, lanes and batch size.

    row groups, permuted          |  3  | 0 |   5   |  1  | 4 |    2    |
    laid end to end, cut          |-- lane 0 --|-- lane 1 --|-- lane 2 --|
    a lane's windows of segments  |  3  | 0 ,  |5  |  1  ,  4 |    2    |
    each window's blocks: some rows of each of its segments, shuffled,
    and the same number of rows of every lane in every step

All lanes have the same number of rows, give or take one, whatever the sizes of the row groups.
Parquet can only be read from a row group's beginning, so a row group that the end of a lane cuts
gives its first rows to the lane that takes fewer of it. One that is longer than a lane is dealt to
its lanes a few rows at a time, so that lanes of one rank read it once, together.

Ranks own whole lanes, so they take the same number of steps without communicating. The order
depends on the lanes and not on the ranks: every world size that divides the number of lanes sees
the same global batches.

The row groups of a window are read side by side, a piece of each at a time. So a batch mixes all of
them, though only a block of their rows is in memory.

Nothing here reads a file, and every array has one entry per row group, segment or lane, never per
row, except the permutation of one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from sparkdl_runner.data.order.lanes import check_lanes
from sparkdl_runner.data.order.permutation import (
    SAMPLE_STREAM,
    IntArray,
    generator,
    permute_groups,
    shuffle_block,
)

Tail = Literal["drop", "pad", "uneven", "wrap"]

TAILS: tuple[Tail, ...] = ("drop", "pad", "uneven", "wrap")
VERSION = 3
"""Of the order. Version 2 cut row groups between lanes where they end, and dealt none."""
NO_LENGTH = (
    "num_epochs=None has no end, and so no length: steps_per_epoch says how many steps an epoch "
    "has."
)


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything that decides the order of rows, besides the epoch."""

    group_rows: IntArray = field(repr=False)
    """``[row_groups]``, rows of each row group, in the manifest's order."""
    global_batch_size: int
    lanes: int
    """Divides ``global_batch_size``."""
    block_rows: int
    """About how many rows of one lane are shuffled together."""
    window_groups: int = 1
    """How many row groups of one lane, at most, these rows come from."""
    seed: int = 0
    shuffle: bool = True
    balance: str | None = None
    """The column of which each step of a lane gets about as much; None for none."""
    wrap: bool = False
    """Whether the epoch's first rows are repeated at its end, to fill the last global batch."""
    version: int = VERSION
    """2 for an order that an earlier version of this package began."""

    def __post_init__(self) -> None:
        numbers = (self.global_batch_size, self.lanes, self.block_rows, self.window_groups)
        if min(numbers) < 1:
            raise ValueError(
                "global_batch_size, lanes, block_rows and window_groups must be 1 or more."
            )
        check_lanes(self.lanes, self.global_batch_size)

    @property
    def lane_batch(self) -> int:
        """Rows that every step takes from each lane."""
        return self.global_batch_size // self.lanes

    @cached_property
    def rows(self) -> int:
        """Rows of the data set."""
        return int(self.group_rows.sum())

    @cached_property
    def epoch_rows(self) -> int:
        """Rows of an epoch: those of the data set, and those that are repeated."""
        if not self.wrap:
            return self.rows
        return -(-self.rows // self.global_batch_size) * self.global_batch_size

    @cached_property
    def lane_rows(self) -> IntArray:
        """int64 ``[lanes]``: the first ``epoch_rows % lanes`` have one row more than the others."""
        result = np.full(self.lanes, self.epoch_rows // self.lanes)
        result[: self.epoch_rows % self.lanes] += 1
        return result

    def steps(self, tail: Tail) -> int:
        """Steps of one epoch, the same on every rank."""
        if tail == "drop":
            return self.rows // self.global_batch_size
        return -(-self.rows // self.global_batch_size)

    def epoch(self, epoch: int) -> EpochPlan:
        """Lays out one epoch; takes about 0.1 s for 100,000 row groups."""
        groups = (
            permute_groups(self.group_rows, self.lanes, self.window_groups, self.seed, epoch)
            if self.shuffle
            else np.flatnonzero(self.group_rows)
        )
        return cut_lanes(self, groups, epoch)

    def block_order(self, epoch: int, lane: int, block: int, numbers: IntArray) -> IntArray:
        """The permutation ``[rows]`` of one block: entry i is the row to be used i-th.

        It is made in place of the numbers ``[rows]`` from 0 on.
        """
        if self.shuffle:
            shuffle_block(numbers, self.seed, epoch, lane, block)
        return numbers

    def sample_random(self, epoch: int, place: int) -> np.random.Generator:
        """Random numbers for the row at a place in an epoch, the same at any number of ranks."""
        return generator(self.seed, epoch, SAMPLE_STREAM, place)


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch, as segments: the rows of one row group in one lane.

    Attributes:
        order: The settings by which it was made.
        epoch: From 0.
        group: int64 ``[segments]``, index of the row group; segments are sorted by lane, and by
            position within their lane.
        start: int64 ``[segments]``, first row within the row group.
        rows: int64 ``[segments]``, always 1 or more.
        span: int64 ``[segments]``, rows of the row group from the segment's first to its last one:
            as many as ``rows``, or more where the row group is dealt to several lanes.
        stream: int64 ``[segments]``, the first segment of those that are read together: its own
            number, or that of the first lane to which the row group is dealt.
        position: int64 ``[segments]``, where the segment begins in its lane.
        first_segment: int64 ``[lanes + 1]``; lane l has segments ``first_segment[l]`` up to, not
            including, ``first_segment[l + 1]``.
    """

    order: Order
    epoch: int
    group: IntArray
    start: IntArray
    rows: IntArray
    span: IntArray
    stream: IntArray
    position: IntArray
    first_segment: IntArray

    def blocks(self, lane: int) -> Iterator[Block]:
        """The blocks of one lane, in the order in which they are used up.

        All but the last have half of ``block_rows`` or more: small windows are put together.
        """
        number = position = 0
        pieces: list[Piece] = []
        rows = 0
        for of_window in self._blocks_of_windows(lane):
            pieces += of_window
            rows += sum(piece.rows for piece in of_window)
            if 2 * rows >= self.order.block_rows:
                yield Block(lane=lane, number=number, position=position, rows=rows, pieces=pieces)
                number, position = number + 1, position + rows
                pieces, rows = [], 0
        if rows:
            yield Block(lane=lane, number=number, position=position, rows=rows, pieces=pieces)

    def window_of(self, lane: int, segment: int) -> slice:
        """The segments of a lane that are used up together with one of them."""
        first, last = int(self.first_segment[lane]), int(self.first_segment[lane + 1])
        windows = -(-(last - first) // self.order.window_groups)
        number = ((segment - first + 1) * windows - 1) // (last - first)
        begin, end = (first + (last - first) * edge // windows for edge in (number, number + 1))
        return slice(begin, end)

    def _blocks_of_windows(self, lane: int) -> Iterator[list[Piece]]:
        """Cuts each window into blocks of about ``block_rows``; yields the pieces of each."""
        next_segment, last = int(self.first_segment[lane]), int(self.first_segment[lane + 1])
        while next_segment < last:
            window = self.window_of(lane, next_segment)
            next_segment = window.stop
            # Plain numbers: a window has few segments, for which NumPy's calls would take longer.
            fields = (self.group, self.start, self.rows, self.span, self.stream)
            numbers = zip(*(field[window].tolist() for field in fields), strict=True)
            segments = list(zip(range(window.start, window.stop), numbers, strict=True))
            blocks = -(-int(self.rows[window].sum()) // self.order.block_rows)
            dealt = {
                segment: self._dealt(segment)
                for segment, (_, _, rows, span, _) in segments
                if span != rows
            }
            for block in range(blocks):
                pieces: list[Piece] = []
                for segment, (group, start, rows, span, stream) in segments:
                    # Segments that are shorter than the number of blocks give their rows to
                    # different ones. Lanes that share a row group cut it alike.
                    is_long = rows >= blocks and self.order.version > 2
                    spread = 0 if is_long else (segment - window.start) % blocks
                    begin = (rows * block + spread) // blocks
                    count = (rows * (block + 1) + spread) // blocks - begin
                    if count:
                        piece = Piece(
                            segment,
                            group,
                            start + begin,
                            count,
                            start + span,
                            count == rows,
                            stream,
                        )
                        pieces += _runs(piece, dealt.get(segment))
                yield pieces

    def _dealt(self, segment: int) -> Dealt:
        first = int(self.stream[segment])
        last = int(np.searchsorted(self.stream, first, side="right"))
        shares = self.rows[first:last]
        rounds = -(-int(shares.max()) // self.order.block_rows)
        return Dealt(shares=shares, rounds=rounds, number=segment - first)


class Piece(NamedTuple):
    """The rows that a block takes of one segment."""

    segment: int
    """The segment's number in the epoch's plan."""
    group: int
    """The segment's row group."""
    start: int
    """The first row of the piece within the row group."""
    rows: int
    until: int
    """The end of the segment within the row group."""
    is_whole: bool
    """Whether it is all of its segment."""
    stream: int
    """The first of the segments that are read together with this one."""


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A row group that is dealt to several lanes, round by round: each gets its share of a round.

    Attributes:
        shares: int64 ``[lanes]``, rows of each in all rounds together.
        rounds: How many.
        number: The lane, as an index of ``shares``.
    """

    shares: IntArray
    rounds: int
    number: int

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Where the lane's rows ``begin`` to ``end`` lie: first row in the row group, and rows."""
        mine = int(self.shares[self.number])
        turn = begin * self.rounds // mine  # this one, or the next
        while begin < end:
            before = self.shares * turn // self.rounds
            after = self.shares * (turn + 1) // self.rounds
            first, last = int(before[self.number]), int(after[self.number])
            if begin < last:
                count = min(end, last) - begin
                offset = int(before.sum() + (after - before)[: self.number].sum())
                yield offset + begin - first, count
                begin += count
            turn += 1


def _runs(piece: Piece, dealt: Dealt | None) -> Iterator[Piece]:
    """A piece, or those into which it falls if its row group is dealt."""
    if dealt is None:
        yield piece
        return
    for start, rows in dealt.runs(piece.start, piece.start + piece.rows):
        yield piece._replace(start=start, rows=rows, is_whole=False)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows of one lane that are in memory together, and shuffled."""

    lane: int
    number: int
    position: int
    """The place of the block's first row in its lane."""
    rows: int
    pieces: Sequence[Piece]


def cut_lanes(order: Order, groups: IntArray, epoch: int) -> EpochPlan:
    """Lays row groups ``[n]`` end to end, in this order, and cuts them into lanes of equal rows."""
    total = order.epoch_rows
    if total > order.rows:
        groups = np.resize(groups, len(groups) * -(-total // order.rows))  # repeats them
    rows = order.group_rows[groups]
    group_ends = np.cumsum(rows)
    lane_rows = order.lane_rows
    lane_starts = np.concatenate([[0], np.cumsum(lane_rows)])[:-1]
    # A segment begins where a row group or a lane begins.
    begins = np.unique(np.concatenate([group_ends - rows, lane_starts[lane_rows > 0]]))
    begins = begins[begins < total]
    lengths = np.diff(begins, append=total)
    member = np.searchsorted(group_ends, begins, side="right")
    lane = np.searchsorted(lane_starts[lane_rows > 0], begins, side="right") - 1
    position = begins - lane_starts[lane_rows > 0][lane]
    start, span = begins - (group_ends - rows)[member], lengths.copy()
    stream = np.arange(len(begins))
    if order.shuffle and order.version > 2:
        _share_groups(member, start, lengths, span, stream)
    return EpochPlan(
        order=order,
        epoch=epoch,
        group=groups[member],
        start=start,
        rows=lengths,
        span=span,
        stream=stream,
        position=position,
        first_segment=np.searchsorted(lane, np.arange(order.lanes + 1)),
    )


def _share_groups(
    member: IntArray, start: IntArray, rows: IntArray, span: IntArray, stream: IntArray
) -> None:
    """Decides which rows of a row group each of its lanes gets, in ``start``, ``span``, ``stream``.

    Args:
        member: int64 ``[segments]``, ascending; those of one row group have one number.
        start: int64 ``[segments]``, likewise the others.
        rows: Rows of each.
        span: See ``EpochPlan``.
        stream: See ``EpochPlan``.
    """
    is_shared = np.diff(member) == 0
    is_first = np.diff(member, prepend=-1) > 0
    # There are fewer such row groups than lanes.
    for first in np.flatnonzero(is_first[:-1] & is_shared).tolist():
        last = int(np.searchsorted(member, member[first], side="right"))
        if last - first > 2:
            start[first:last], span[first:last] = 0, rows[first:last].sum()
            stream[first:last] = first
        elif rows[first] > rows[first + 1]:
            start[first], start[first + 1] = rows[first + 1], 0

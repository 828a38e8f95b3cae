"""The order of rows: pure functions of row counts, seed, epoch, lanes and batch size.

    row groups, permuted         |  3  | 0 |   5   |  1  | 4 |    2    |
    laid end to end, cut         |-- lane 0 --|-- lane 1 --|-- lane 2 --|
    read by blocks of segments   |  3  | 0 ,  |5  |  1  ,  4 |    2    |
    shuffled within each block,
    and the same number of rows of every lane in every step

All lanes have the same number of rows, give or take one, whatever the sizes of the row groups.
Ranks own whole lanes, so they take the same number of steps without communicating. The order
depends on the lanes and not on the ranks: every world size that divides the number of lanes sees
the same global batches.

Nothing here reads a file, and every array has one entry per row group, segment or lane, never per
row, except the permutation of one block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

Tail = Literal["drop", "pad", "uneven", "wrap"]
IntArray = npt.NDArray[np.int64]

TAILS: tuple[Tail, ...] = ("drop", "pad", "uneven", "wrap")
NO_LENGTH = (
    "num_epochs=None has no end, and so no length: steps_per_epoch says how many steps an epoch "
    "has."
)
_GROUP_STREAM, _BLOCK_STREAM, _SAMPLE_STREAM = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything that decides the order of rows, besides the epoch."""

    group_rows: IntArray = field(repr=False)
    """``[row_groups]``, rows of each row group, in the manifest's order."""
    global_batch_size: int
    lanes: int
    """Divides ``global_batch_size``."""
    block_rows: int
    """About how many rows of one lane are shuffled together. Blocks are made of whole segments."""
    seed: int = 0
    shuffle: bool = True
    wrap: bool = False
    """Whether the epoch's first rows are repeated at its end, to fill the last global batch."""

    def __post_init__(self) -> None:
        if self.global_batch_size < 1 or self.lanes < 1 or self.block_rows < 1:
            raise ValueError("global_batch_size, lanes and block_rows must be 1 or more.")
        if self.global_batch_size % self.lanes:
            raise ValueError(
                f"lanes={self.lanes} does not divide the global batch of "
                f"{self.global_batch_size} rows: every step takes the same number of rows from "
                f"each lane. Lanes that fit: {_some_divisors(self.global_batch_size)}."
            )

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
        """Lays out one epoch; takes about 20 ms for 100,000 row groups."""
        groups = (
            permute_groups(self.group_rows, self.lanes, self.seed, epoch)
            if self.shuffle
            else np.flatnonzero(self.group_rows)
        )
        return cut_lanes(self, groups, epoch)

    def block_order(self, epoch: int, lane: int, block: int, rows: int) -> IntArray:
        """The permutation ``[rows]`` of one block: entry i is the row to be used i-th."""
        if not self.shuffle:
            return np.arange(rows)
        return _generator(self.seed, epoch, _BLOCK_STREAM, lane, block).permutation(rows)

    def sample_random(self, epoch: int, place: int) -> np.random.Generator:
        """Random numbers for the row at a place in an epoch, the same at any number of ranks."""
        return _generator(self.seed, epoch, _SAMPLE_STREAM, place)


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch, as segments: runs of rows of one row group in one lane.

    Attributes:
        order: The settings by which it was made.
        epoch: From 0.
        group: int64 ``[segments]``, index of the row group; segments are sorted by lane, and by
            position within their lane.
        start: int64 ``[segments]``, first row within the row group.
        rows: int64 ``[segments]``, always 1 or more.
        position: int64 ``[segments]``, where the segment begins in its lane.
        block: int64 ``[segments]``, number of its block within its lane, from 0.
        first_segment: int64 ``[lanes + 1]``; lane l has segments ``first_segment[l]`` up to, not
            including, ``first_segment[l + 1]``.
    """

    order: Order
    epoch: int
    group: IntArray
    start: IntArray
    rows: IntArray
    position: IntArray
    block: IntArray
    first_segment: IntArray

    def blocks(self, lane: int) -> list[Block]:
        """The blocks of one lane, in the order in which they are used up."""
        first, last = int(self.first_segment[lane]), int(self.first_segment[lane + 1])
        if first == last:
            return []
        numbers = self.block[first:last]
        edges = first + np.flatnonzero(np.diff(numbers, prepend=-1, append=np.iinfo(np.int64).max))
        return [
            Block(
                lane=lane,
                number=number,
                position=int(self.position[begin]),
                rows=int(self.rows[begin:end].sum()),
                segments=tuple(
                    zip(
                        self.group[begin:end].tolist(),
                        self.start[begin:end].tolist(),
                        self.rows[begin:end].tolist(),
                        strict=True,
                    )
                ),
            )
            for number, (begin, end) in enumerate(
                zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            )
        ]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Segments of one lane that are read and shuffled together."""

    lane: int
    number: int
    position: int
    """Where it begins in its lane."""
    rows: int
    segments: tuple[tuple[int, int, int], ...]
    """``(row group, first row in it, rows)`` of each segment."""


def permute_groups(group_rows: IntArray, lanes: int, seed: int, epoch: int) -> IntArray:
    """Permutes the row groups that have rows, spread evenly over the data set.

    Lanes are read side by side, so at any time one row group per lane is in use. The permutation
    is stratified: the data set is cut into strata of neighbouring row groups, and each stratum is
    spread evenly over the epoch. So the rows in use at any time are a fair sample of the data set,
    even if it is sorted by label. The rank correlation between a row's place in the data set and
    its place in the epoch is about 1 / row groups; without strata it would be
    1 / sqrt(row groups).

    Args:
        group_rows: ``[row_groups]``, rows of each.
        lanes: Number of lanes that the result will be cut into.
        seed: The loader's.
        epoch: From 0.

    Returns:
        int64 ``[row groups with rows]``, indexes of row groups: lane 0's first, in reading order.
    """
    groups = np.flatnonzero(group_rows)
    count = len(groups)
    random = _generator(seed, epoch, _GROUP_STREAM)
    if count == 0:
        return groups
    # Large strata shuffle more widely, small ones spread more evenly; the square root balances
    # both. A multiple of the lanes, since each lane reads a row group at any time.
    strata = min(count, lanes * max(1, round(math.sqrt(count) / lanes)))
    stratum = np.arange(count) * strata // count
    dealt = np.lexsort((random.random(count), stratum))  # each stratum in random order
    slot = np.arange(count) - np.searchsorted(stratum, stratum)
    due = (slot + random.random(count)) / np.bincount(stratum)[stratum]
    # If all row groups were of one size, the one at place p would be read from the time
    # (p * lanes / count) mod 1 of the epoch on. One that is cut by the end of a lane is read partly
    # then and partly at the start of the next lane, so it counts with the mean of both times.
    begin = np.arange(count) * lanes % count
    late = np.minimum(lanes, count - begin)
    early = lanes - late
    mean_time = late * (2 * begin + late) + early * early
    result = np.empty(count, dtype=np.int64)
    result[np.argsort(mean_time, kind="stable")] = groups[dealt[np.argsort(due)]]
    return result


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
    # Lanes begin their blocks at different times, so that reads are spread over the epoch.
    stagger = lane * order.block_rows // order.lanes
    return EpochPlan(
        order=order,
        epoch=epoch,
        group=groups[member],
        start=begins - (group_ends - rows)[member],
        rows=lengths,
        position=position,
        block=(position + stagger) // order.block_rows,
        first_segment=np.searchsorted(lane, np.arange(order.lanes + 1)),
    )


def choose_lanes(given: int | None, global_batch_size: int, world_size: int, most: int) -> int:
    """The number of lanes.

    By default the largest power of two up to ``most`` that divides the global batch, so that most
    world sizes agree on it. If the world size does not divide that, their least common multiple.

    Args:
        given: The caller's choice, if any.
        global_batch_size: A multiple of ``world_size``.
        world_size: Number of ranks.
        most: Lanes that one rank's budget allows.

    Raises:
        ValueError: The ranks cannot share ``given`` lanes.
    """
    if given is None:
        base = math.gcd(global_batch_size, 1 << (max(1, most).bit_length() - 1))
        return math.lcm(base, world_size)
    if given % world_size:
        raise ValueError(
            f"lanes={given} cannot be shared evenly by {world_size} ranks. Give a multiple of "
            f"{world_size} that divides the global batch of {global_batch_size} rows."
        )
    return given


def _generator(seed: int, epoch: int, *stream: int) -> np.random.Generator:
    """An independent random generator for each part of each epoch.

    Philox is based on a counter: the key is (seed, epoch), and each part begins at another count.
    """
    counter = np.zeros(4, dtype=np.uint64)
    counter[4 - len(stream) :] = stream[::-1]
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def _some_divisors(number: int) -> str:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = sorted({*low, *(number // n for n in low)})
    return ", ".join(map(str, divisors[:12])) + (", …" if len(divisors) > 12 else "")

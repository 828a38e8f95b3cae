"""Puts row groups in the order of an epoch, so that those in use together come from everywhere.

A lane uses up a window of row groups at a time, and the windows of all lanes lie side by side:

    lane 0   | window 0 | window 1 | …
    lane 1   | window 0 | window 1 | …

The table is cut into strata of neighbouring row groups, and each time, a window of every lane,
gets one row group of each stratum. So the rows in use together are a fair sample of the
table, those of one lane as well as those of all lanes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_GROUP_STREAM, _BLOCK_STREAM, SAMPLE_STREAM = 0, 1, 2
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


def permute_groups(
    group_rows: IntArray, lanes: int, window_groups: int, seed: int, epoch: int
) -> IntArray:
    """Permutes the row groups that have rows.

    So the rows in use at any time are a fair sample of the data set, even if it is sorted by
    label, and each stratum of the data set is spread evenly over the epoch.

    Args:
        group_rows: ``[row_groups]``, rows of each.
        lanes: Number of lanes that the result will be cut into.
        window_groups: Row groups of one lane that are used up together.
        seed: The loader's.
        epoch: From 0.

    Returns:
        int64 ``[row groups with rows]``, indexes of row groups: lane 0's first, in reading order.
    """
    groups = np.flatnonzero(group_rows)
    count = len(groups)
    if count == 0:
        return groups
    random = generator(seed, epoch, _GROUP_STREAM)
    windows = -(-count // (lanes * window_groups))
    strata = -(-count // windows)
    # What lacks to strata of equal size, evenly over the table, is dealt as well and left out.
    places = np.arange(strata * windows)
    group_at = np.full(len(places), -1)
    group_at[np.arange(count) * len(places) // count] = groups
    # Each time, which is a window of each lane, gets one row group of each stratum. Large cells
    # shuffle more widely, small ones spread more evenly over time; the square root balances both.
    stratum, number = np.divmod(places, windows)
    cells = max(1, round(math.sqrt(windows)))
    cell = stratum * cells + number * cells // windows
    slot = _rank_within(cell, random.random(len(places)))
    due = (slot + random.random(len(places))) / np.bincount(cell)[cell]
    time = _rank_within(stratum, due)
    group_of = np.empty((windows, strata), dtype=np.int64)
    group_of[time, stratum] = group_at
    dealt = np.take_along_axis(group_of, _spread(windows, strata, lanes, random), axis=1).ravel()
    # If all row groups were of one size, the one at place p would be read from the time
    # (p * lanes / count) mod 1 of the epoch on. One that is cut by the end of a lane is read partly
    # then and partly at the start of the next lane, so it counts with the mean of both times.
    begin = np.arange(count) * lanes % count
    late = np.minimum(lanes, count - begin)
    early = lanes - late
    mean_time = late * (2 * begin + late) + early * early
    result = np.empty(count, dtype=np.int64)
    result[np.argsort(mean_time, kind="stable")] = dealt[dealt >= 0]
    return result


def _spread(times: int, strata: int, lanes: int, random: np.random.Generator) -> IntArray:
    """The order of the strata at each time, int64 ``[times, strata]``.

    Any neighbours in it are spread evenly over the table, and so is every ``lanes``-th of it, which
    are those of one lane: both step by the golden ratio, or nearly so, around the table.
    """
    step = (round(_GOLDEN_RATIO * (lanes - 1)) + _GOLDEN_RATIO) / lanes
    place = np.arange(strata) * step + random.random((times, 1))
    place = place % 1 + random.random((times, strata)) / max(lanes, strata // lanes)
    return place.argsort(axis=1).argsort(axis=1)


def shuffle_block(numbers: IntArray, seed: int, epoch: int, lane: int, block: int) -> None:
    """Shuffles the numbers of a block's rows: entry i is then the row to be used i-th."""
    generator(seed, epoch, _BLOCK_STREAM, lane, block).shuffle(numbers)


def _rank_within(group: IntArray, key: npt.NDArray[np.float64]) -> IntArray:
    """int64 ``[n]``: how many members of the same group have a smaller key."""
    order = np.lexsort((key, group))
    ordered = group[order]
    result = np.empty(len(group), dtype=np.int64)
    result[order] = np.arange(len(group)) - np.searchsorted(ordered, ordered)
    return result


def generator(seed: int, epoch: int, *stream: int) -> np.random.Generator:
    """An independent random generator for each stream of each epoch.

    Philox is based on a counter: the key is (seed, epoch), and each stream begins at another
    count.
    """
    counter = np.zeros(4, dtype=np.uint64)
    counter[4 - len(stream) :] = stream[::-1]
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))

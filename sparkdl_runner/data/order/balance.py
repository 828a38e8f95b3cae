"""Deals the rows of a block to its steps, so that each step gets about as much of them.

Every lane does so by itself, with the rows that it has in memory anyway. So the order depends on
the lanes and not on the ranks, and no rank learns the lengths of another's rows: the blocks of all
lanes are fair samples of the data set, so their steps get about as much as each other's, too.
"""

from __future__ import annotations

import numpy as np

from sparkdl_runner.data.order.permutation import IntArray


def balanced(order: IntArray, lengths: IntArray, position: int, lane_batch: int) -> IntArray:
    """Moves the rows of a block between its steps; rows of one length stay in random order.

    The longest rows go first, one to each step, and each next one to the step that has the least.

    Args:
        order: int64 ``[rows]``, the permutation of the block: entry i is the row to be used i-th.
        lengths: int64 ``[rows]``, by the number of the row.
        position: Where the block begins in its lane. Its first and last step may be shared with
            other blocks.
        lane_batch: Rows that a step takes of the lane.

    Returns:
        int64 ``[rows]``, another permutation, which follows from these arguments alone.
    """
    step = (position + np.arange(len(order))) // lane_batch
    step -= step[:1]
    sizes = np.bincount(step)
    longest = np.argsort(-lengths[order], kind="stable")
    # Steps of one load take rows in turns that are random, as the order is.
    turn = order[np.cumsum(sizes) - sizes]
    by_turn = np.argsort(turn)
    load = np.zeros(len(sizes))
    taken = np.zeros(len(sizes), dtype=np.int64)
    dealt = np.empty_like(step)
    begin = 0
    for number in range(1, lane_batch + 1):
        # A step that has fewer rows here takes them at even distances.
        due = sizes * number // lane_batch > taken
        takers = by_turn[due[by_turn]]
        takers = takers[np.argsort(load[takers], kind="stable")]
        rows = longest[begin : begin + len(takers)]
        dealt[rows] = takers
        taken[takers] += 1
        # A step with fewer rows is compared as if it had all of them.
        load[takers] += lengths[order[rows]] * (lane_batch / sizes[takers])
        begin += len(takers)
    return order[np.argsort(dealt, kind="stable")]

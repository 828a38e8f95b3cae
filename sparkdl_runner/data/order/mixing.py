"""How well an order mixes a table that is sorted by label, by its plan alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparkdl_runner.data.order.permutation import IntArray
from sparkdl_runner.data.order.plan import EpochPlan, Order

LABELS = 10
"""The values of the column that the table is thought to be sorted by, as many rows of each."""
_MOMENTS = 16

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MixingFigures:
    """What batches hold on average, and what they would hold after a full shuffle."""

    batch_labels: float
    """Different labels in a batch of one rank."""
    shuffled_batch_labels: float
    global_deviation: float
    """Total variation distance between the labels of a global batch and those of the table."""
    shuffled_global_deviation: float
    batch_groups: float
    """Row groups that a batch of one rank comes from."""


def measure(order: Order, world_size: int) -> MixingFigures:
    """Takes the first epoch's plan, of a table of 10 labels that is sorted by them.

    Args:
        order: A shuffled one.
        world_size: Divides the order's lanes.
    """
    plan = order.epoch(0)
    labels, deviations, groups = [], [], []
    lane_batch, total = order.lane_batch, order.global_batch_size
    for moment in range(_MOMENTS):
        shares, in_use = _shares(plan, (moment + 0.5) / _MOMENTS)
        # The chance that a rank's batch lacks a label: none of its lanes gives one.
        lacks = ((1 - shares) ** lane_batch).reshape(world_size, -1, LABELS).prod(axis=1)
        labels.append(float((1 - lacks).sum(axis=1).mean()))
        variance = lane_batch * (shares * (1 - shares)).sum(axis=0) / total**2
        deviations.append(_deviation(shares.mean(axis=0) - 1 / LABELS, variance))
        groups.append(in_use / world_size)
    size = total // world_size
    even = np.full(LABELS, 1 / LABELS)
    return MixingFigures(
        batch_labels=float(np.mean(labels)),
        shuffled_batch_labels=LABELS * (1 - (1 - 1 / LABELS) ** size),
        global_deviation=float(np.mean(deviations)),
        shuffled_global_deviation=_deviation(np.zeros(LABELS), even * (1 - even) / total),
        batch_groups=float(np.mean(groups)),
    )


def _shares(plan: EpochPlan, moment: float) -> tuple[FloatArray, int]:
    """The share of each label in each lane at a moment from 0 to 1, ``[lanes, labels]``.

    And the number of row groups that they come from.
    """
    order = plan.order
    first_row = np.concatenate([[0], np.cumsum(order.group_rows)])
    result = np.zeros((order.lanes, LABELS))
    in_use = 0
    for lane in range(order.lanes):
        first, last = int(plan.first_segment[lane]), int(plan.first_segment[lane + 1])
        if first == last:
            result[lane] = 1 / LABELS
            continue
        position = moment * int(order.lane_rows[lane])
        past = int(np.searchsorted(plan.position[first:last], position, side="right"))
        window = plan.window_of(lane, first + past - 1)
        rows = plan.rows[window]
        done = (position - plan.position[window.start]) / rows.sum()
        row: IntArray = first_row[plan.group[window]] + plan.start[window]
        label = ((row + plan.span[window] * done) * LABELS / max(1, order.rows)).astype(np.int64)
        result[lane] = np.bincount(label, rows, minlength=LABELS)[:LABELS] / rows.sum()
        in_use += len(rows)
    return result, in_use


def _deviation(offset: FloatArray, variance: FloatArray) -> float:
    """Half the sum of the expected absolute values of normal variables."""
    total = 0.0
    for mean, spread in zip(offset.tolist(), np.sqrt(variance).tolist(), strict=True):
        if spread:
            total += spread * math.sqrt(2 / math.pi) * math.exp(-(mean**2) / (2 * spread**2))
            total += mean * math.erf(mean / spread / math.sqrt(2))
        else:
            total += abs(mean)
    return total / 2

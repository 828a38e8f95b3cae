"""Statistics of many turns: the spread, and an interval for the median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import accumulate

NOISE = 0.1
"""A figure whose spread is more than this share of its median is marked as noise."""
SURE = 0.95
LEAST_PAIRS = 6
"""Of fewer turns no interval is as sure as that."""


def spread(values: Sequence[float]) -> float:
    """The distance between the quartiles, divided by the median; of one value nothing."""
    middle = statistics.median(values)
    if len(values) < 2 or not middle:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / abs(middle)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval that holds the true median with 95 % certainty, for any distribution.

    The ends are values themselves: the chance that so few of n fall on one side of the true median
    is binomial. Of fewer than ``LEAST_PAIRS``, they are the least and the greatest: less sure.
    """
    ordered = sorted(values)
    count = len(ordered)
    chances = accumulate(2 * math.comb(count, skip) / 2**count for skip in range(count // 2))
    skip = max(sum(outside <= 1 - SURE for outside in chances) - 1, 0)
    return ordered[skip], ordered[count - 1 - skip]

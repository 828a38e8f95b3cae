"""Statistics of many turns: the spread, and an interval for the median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

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
    is binomial. Of fewer than ``LEAST_PAIRS`` these are the least and the greatest, which is less
    sure.
    """
    ordered = sorted(values)
    count = len(ordered)
    outside, skip = 0.0, 0
    while skip < count // 2:
        outside += 2 * math.comb(count, skip) / 2**count
        if outside > 1 - SURE:
            break
        skip += 1
    skip = max(skip - 1, 0)
    return ordered[skip], ordered[count - 1 - skip]

"""The bounds of columns in row groups, as far as footers and partitions tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.data.dataset.view.view import Projection


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The bounds of a column in some rows, from a footer or a partition."""

    low: Any = None
    """No value is below; None if that is not known."""
    high: Any = None
    nulls: int | None = None
    """Rows that are null; None if that is not known."""
    rows: int
    exact: bool = True
    """Whether every value lies between the two: statistics pass over NaN."""


def min_max(statistics: pq.Statistics | None) -> tuple[Any, Any] | None:
    """The smallest and largest value; None if they are not known.

    pyarrow raises errors of many kinds for what it cannot show: decimals of 32 and 64 bits, times
    that Python cannot hold, texts that are none. Then only the rows can say.
    """
    try:
        if statistics is None or not statistics.has_min_max:
            return None
        low, high = statistics.min, statistics.max
    except Exception:
        return None
    return None if low is None or high is None else (low, high)


def bounds_of(
    group: pq.RowGroupMetaData,
    owners: Sequence[str],
    projection: Projection,
    types: Mapping[str, pa.DataType],
) -> dict[str, Bounds]:
    """The bounds that a footer has for each column of a row group."""
    rows = group.num_rows
    result = {name: of_constant(value, rows) for name, value in projection.constants.items()}
    for name, there in projection.names.items():
        result[name] = Bounds(rows=rows)
        if pa.types.is_nested(types[name]) or there not in owners:
            continue
        statistics = group.column(owners.index(there)).statistics
        if statistics is None:
            continue
        low, high = min_max(statistics) or (None, None)
        result[name] = Bounds(
            low=low,
            high=high,
            nulls=statistics.null_count if statistics.has_null_count else None,
            rows=rows,
            exact=not pa.types.is_floating(types[name]),
        )
    return result


def of_constant(value: Any, rows: int) -> Bounds:
    """The bounds of a column that has one value in these rows."""
    return Bounds(low=value, high=value, nulls=rows if value is None else 0, rows=rows)

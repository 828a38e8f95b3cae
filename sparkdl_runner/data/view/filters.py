"""Filters on rows, in the lists that pyarrow and petastorm take: statistics first, then rows.

``[("day", ">=", date(2024, 1, 1)), ("label", "in", [1, 2])]`` means both; a list of such lists
means one of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.data.view.rows import BoolArray

Filter = tuple[str, str, Any]
Filters = Sequence[Filter] | Sequence[Sequence[Filter]]

_OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in")
_SETS = ("in", "not in")


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


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Filters that fit a table's columns."""

    clauses: tuple[tuple[Filter, ...], ...]
    """Rows count that fulfil all filters of one of these."""
    schema: pa.Schema
    """The columns that the filters name."""

    @classmethod
    def of(cls, filters: Filters, schema: pa.Schema) -> RowFilter:
        """Checks filters against the columns of a table.

        Raises:
            TypeError: It is no list of filters.
            ValueError: A filter names no column, or compares with what its column cannot hold.
        """
        if not isinstance(filters, (list, tuple)) or not filters:
            raise TypeError(f"filters is {filters!r}; expected {_EXPECTED}.")
        nested = all(isinstance(one, Sequence) and not _is_filter(one) for one in filters)
        clauses = tuple(
            tuple(_checked(one, schema) for one in clause)
            for clause in (filters if nested else [filters])
        )
        names = dict.fromkeys(name for clause in clauses for name, _, _ in clause)
        if not all(clauses):
            raise TypeError(f"filters holds an empty list; expected {_EXPECTED}.")
        return cls(clauses=clauses, schema=pa.schema([schema.field(name) for name in names]))

    def decide(self, bounds: Mapping[str, Bounds]) -> bool | None:
        """Whether all rows count (True), or none (False); None if only the rows can say.

        Args:
            bounds: By column; a column may be missing.
        """
        found = [self._clause(clause, bounds) for clause in self.clauses]
        if True in found:
            return True
        return None if None in found else False

    @staticmethod
    def _clause(clause: Sequence[Filter], bounds: Mapping[str, Bounds]) -> bool | None:
        found = [_decide(one, bounds.get(one[0])) for one in clause]
        if False in found:
            return False
        return None if None in found else True

    def keep(self, batch: pa.RecordBatch) -> BoolArray:
        """Bool ``[rows]``, which rows count; the batch has the columns of ``schema``."""
        number = "__row"
        table = pa.Table.from_batches([batch])
        table = table.append_column(number, pa.array(np.arange(batch.num_rows)))
        kept = table.filter(pq.filters_to_expression([list(one) for one in self.clauses]))
        result = np.zeros(batch.num_rows, dtype=np.bool_)
        result[kept.column(number).to_numpy()] = True
        return result

    def __str__(self) -> str:
        return repr([list(clause) for clause in self.clauses])


_EXPECTED = (
    "a list such as [('day', '>=', '2024-01-01'), ('label', 'in', [1, 2])], all of which must "
    "hold, or a list of such lists, one of which must"
)


def _is_filter(one: Any) -> bool:
    return isinstance(one, Sequence) and len(one) == 3 and isinstance(one[1], str)


def _checked(one: Any, schema: pa.Schema) -> Filter:
    if not _is_filter(one) or not isinstance(one[0], str):
        raise TypeError(f"filters holds {one!r}; expected {_EXPECTED}.")
    name, operator, value = one
    if name not in schema.names:
        near = difflib.get_close_matches(name, schema.names, n=1)
        hint = f" did you mean {near[0]!r}?" if near else f" it has: {', '.join(schema.names)}."
        raise ValueError(f"filters names {name!r}, and the data set has no such column;{hint}")
    if operator not in _OPERATORS:
        raise ValueError(
            f"filters compares {name!r} by {operator!r}; expected one of {', '.join(_OPERATORS)}."
        )
    if operator not in _SETS:
        return name, operator, _value(value, name, schema)
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise ValueError(f"filters: {operator!r} takes a list of values, not {value!r}.")
    values = sorted({_value(inner, name, schema) for inner in value})
    if 0 in values and pa.types.is_floating(schema.field(name).type):
        # Arrow tells 0.0 from -0.0 in a list, and nowhere else.
        values = [*(one or 0.0 for one in values), -0.0]
    return name, operator, values


def _value(value: Any, name: str, schema: pa.Schema) -> Any:
    """The value as one of the column's type, such as a date from a text."""
    wanted = schema.field(name).type
    if pa.types.is_nested(wanted):
        raise ValueError(f"filters names {name!r}, which is {wanted}: filter by numbers or texts.")
    if value is None or value != value:
        raise ValueError(f"filters compares {name!r} with {value!r}, which nothing equals.")
    if hasattr(value, "item"):
        value = value.item()  # NumPy's own scalars
    try:
        scalar = pa.scalar(value)
        exact = pa.types.is_floating(scalar.type) or pa.types.is_integer(scalar.type)
        if exact and (pa.types.is_floating(wanted) or pa.types.is_integer(wanted)):
            return value  # 2.5 may bound whole numbers.
        return scalar.cast(wanted).as_py()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ValueError(
            f"filters compares {name!r}, which is {wanted}, with {value!r}: {error}."
        ) from None


def _decide(one: Filter, bounds: Bounds | None) -> bool | None:
    """Whether all rows fulfil a filter, or none does; None if that is not known."""
    if bounds is None or bounds.rows == 0:
        return None
    _, operator, value = one
    if bounds.nulls == bounds.rows:
        return operator == "not in"  # As in pyarrow, to which a null is in no list.
    if bounds.low is None or bounds.high is None:
        return None
    try:
        none, every = _compare(operator, value, bounds)
    except TypeError:
        return None  # The statistics are of another type than the table's column.
    if operator == "not in":
        return False if none and bounds.nulls == 0 else True if every else None
    return False if none else True if every and bounds.nulls == 0 else None


def _compare(operator: str, value: Any, bounds: Bounds) -> tuple[bool, bool]:
    """Whether no value, and whether every value, fulfils a filter, nulls left aside."""
    low, high, exact = bounds.low, bounds.high, bounds.exact
    values = value if operator in _SETS else [value]
    outside = all(one < low or one > high for one in values)
    single = exact and low == high and low in values
    if operator in ("=", "==", "in"):
        return outside, single
    if operator in ("!=", "not in"):
        return single, outside
    if operator == "<":
        return bool(low >= value), exact and high < value
    if operator == "<=":
        return bool(low > value), exact and high <= value
    if operator == ">":
        return bool(high <= value), exact and low > value
    return bool(high < value), exact and low >= value

"""Filters on rows, in the lists that pyarrow and petastorm take: statistics first, then rows.

``[("day", ">=", date(2024, 1, 1)), ("label", "in", [1, 2])]`` means both; a list of such lists
means one of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl_runner.data.dataset.view.bounds import Bounds
from sparkdl_runner.data.dataset.view.filter_values import comparison, floor_as, plain
from sparkdl_runner.data.dataset.view.rows import BoolArray

Filter = tuple[str, str, Any]
Filters = Sequence[Filter] | Sequence[Sequence[Filter]]

_OPERATORS = ("=", "==", "!=", "<", "<=", ">", ">=", "in", "not in")
_SETS = ("in", "not in")
_COMPUTE: Mapping[str, Callable[..., Any]] = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Filters that fit a table's columns."""

    clauses: tuple[tuple[Filter, ...], ...]
    """Rows count that fulfil all filters of one of these; values are of the columns' types."""
    schema: pa.Schema
    """The columns that the filters name."""
    text: str
    """The filters as they were given, which a loader's state keeps."""

    @classmethod
    def of(cls, filters: Filters, schema: pa.Schema) -> RowFilter:
        """Checks filters against the columns of a table.

        Raises:
            TypeError: It is no list of filters.
            ValueError: A filter names no column, or compares with what its column cannot hold.
        """
        if not isinstance(filters, (list, tuple)) or not filters:
            raise TypeError(f"filters is {filters!r}; expected {_EXPECTED}.")
        nested = all(isinstance(entry, Sequence) and not _is_filter(entry) for entry in filters)
        checked = [
            [_checked(entry, schema) for entry in clause]
            for clause in (filters if nested else [filters])
        ]
        if not all(checked):
            raise TypeError(f"filters holds an empty list; expected {_EXPECTED}.")
        clauses = tuple(tuple(exact for exact, _ in clause) for clause in checked)
        names = dict.fromkeys(name for clause in clauses for name, _, _ in clause)
        return cls(
            clauses=clauses,
            schema=pa.schema([(name, _plain_type(schema.field(name).type)) for name in names]),
            text=repr([[given for _, given in clause] for clause in checked]),
        )

    def decide(self, bounds: Mapping[str, Bounds]) -> bool | None:
        """Whether all rows count (True), or none (False); None if only the rows can say.

        Args:
            bounds: By column; a column may be missing.
        """
        decisions = [self._clause(clause, bounds) for clause in self.clauses]
        if True in decisions:
            return True
        return None if None in decisions else False

    @staticmethod
    def _clause(clause: Sequence[Filter], bounds: Mapping[str, Bounds]) -> bool | None:
        decisions = [_decide(condition, bounds.get(condition[0])) for condition in clause]
        if False in decisions:
            return False
        return None if None in decisions else True

    def keep(self, batch: pa.RecordBatch) -> BoolArray:
        """Bool ``[rows]``, which rows count; the batch has the columns of ``schema``."""
        clauses = [
            reduce(
                pc.and_kleene,
                [_fulfilled(condition, batch.column(condition[0])) for condition in clause],
            )
            for clause in self.clauses
        ]
        kept = pc.fill_null(reduce(pc.or_kleene, clauses), False).cast(pa.uint8())
        # Array.to_numpy would import pandas.
        flags = np.frombuffer(kept.buffers()[1], np.uint8, len(kept), kept.offset)
        return flags.astype(np.bool_)

    def __str__(self) -> str:
        return self.text


def _fulfilled(condition: Filter, array: pa.Array) -> pa.Array:
    """Whether each row fulfils a filter; null where it compares with null."""
    _, operator, value = condition
    if operator == "valid":
        return array.is_valid()
    if operator in _SETS:
        is_member = pc.is_in(array, value_set=pa.array(value, array.type))
        return is_member if operator == "in" else pc.invert(is_member)
    # With a value of another type, Arrow would compare both as a third.
    return _COMPUTE[operator](array, pa.scalar(value, array.type))


_EXPECTED = (
    "a list such as [('day', '>=', '2024-01-01'), ('label', 'in', [1, 2])], all of which must "
    "hold, or a list of such lists, one of which must"
)


def _is_filter(entry: Any) -> bool:
    return isinstance(entry, Sequence) and len(entry) == 3 and isinstance(entry[1], str)


def _checked(entry: Any, schema: pa.Schema) -> tuple[Filter, Filter]:
    """A filter with a value of its column's type, and as it was given."""
    if not _is_filter(entry) or not isinstance(entry[0], str):
        raise TypeError(f"filters holds {entry!r}; expected {_EXPECTED}.")
    name, operator, value = entry
    if name not in schema.names:
        near = difflib.get_close_matches(name, schema.names, n=1)
        hint = f" did you mean {near[0]!r}?" if near else f" it has: {', '.join(schema.names)}."
        raise ValueError(f"filters names {name!r}, and the data set has no such column;{hint}")
    if operator not in _OPERATORS:
        raise ValueError(
            f"filters compares {name!r} by {operator!r}; expected one of {', '.join(_OPERATORS)}."
        )
    wanted = _plain_type(schema.field(name).type)
    if pa.types.is_nested(wanted):
        raise ValueError(f"filters names {name!r}, which is {wanted}: filter by numbers or texts.")

    def tried(make: Callable[[Any], Any], value: Any) -> Any:
        try:
            return make(value)
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(
                f"filters compares {name!r}, which is {wanted}, with {value!r}: {error}."
            ) from None

    nothing = pa.array([], wanted)
    if operator not in _SETS:
        value = _given(value, name)
        exact = tried(lambda single: comparison(operator, single, wanted), value)
        tried(lambda _: _fulfilled((name, *exact), nothing), value)
        return (name, *exact), (name, operator, _shown(value, exact[1], operator == exact[0]))
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise ValueError(f"filters: {operator!r} takes a list of values, not {value!r}.")
    given = [_given(member, name) for member in value]
    floors = [tried(lambda member: floor_as(member, wanted), member) for member in given]
    there = [
        (member, floor) for member, (floor, is_there) in zip(given, floors, strict=True) if is_there
    ]
    values = _listed({floor for _, floor in there}, wanted)
    tried(lambda _: _fulfilled((name, operator, values), nothing), value)
    shown = _listed({_shown(member, floor, True) for member, floor in there}, wanted)
    return (name, operator, values), (name, operator, shown)


def _given(value: Any, name: str) -> Any:
    if value is None or value != value:
        raise ValueError(f"filters compares {name!r} with {value!r}, which nothing equals.")
    return plain(value)


def _shown(given: Any, exact: Any, is_exact: bool) -> Any:
    """A value for the text of a filter, as it has always been there: states keep that."""
    return given if isinstance(given, (int, float)) or not is_exact else exact


def _listed(values: Collection[Any], wanted: pa.DataType) -> list[Any]:
    if 0 in values and pa.types.is_floating(wanted):
        # Arrow tells 0.0 from -0.0 in a list, and nowhere else.
        return [*(number or 0.0 for number in sorted(values)), -0.0]
    return sorted(values)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _decide(condition: Filter, bounds: Bounds | None) -> bool | None:
    """Whether all rows fulfil a filter, or none does; None if that is not known."""
    if bounds is None or bounds.rows == 0:
        return None
    _, operator, value = condition
    if bounds.nulls == bounds.rows:
        return operator == "not in"  # As in pyarrow, to which a null is in no list.
    if operator == "valid":
        return True if bounds.nulls == 0 else None
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
    outside = all(member < low or member > high for member in values)
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

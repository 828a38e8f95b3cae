"""Doubles beyond float32, which become infinite: counted while they are written, and told once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t

from sparkdl_runner.data.convert.plan import quoted

_MOST_COUNTS = 16
"""Columns with a count each; of more, neighbours share one, since each count costs time."""

_INFINITIES = "array(float('infinity'), float('-infinity'))"
"""In SQL."""

_log = logging.getLogger(__name__)


def count_infinite(schema: t.StructType, narrowed: tuple[str, ...]) -> Iterator[tuple[str, Column]]:
    """For groups of columns a name, and whether one row has an infinite value in one of them.

    Args:
        schema: Of what is written.
        narrowed: Columns whose doubles become float32.
    """
    for index, names in enumerate(_groups(schema, narrowed)):
        kind = schema[names[0]].dataType
        if isinstance(kind, t.ArrayType):
            yield f"infinite-{index}", _holds_infinite(F.col(quoted(names[0])), kind)
            continue
        # Text, since a Column takes several calls to the JVM, and there may be thousands. No
        # lambda, which Spark would interpret for each number.
        numbers = ", ".join(map(quoted, names))
        yield f"infinite-{index}", F.expr(f"arrays_overlap(array({numbers}), {_INFINITIES})")


def _groups(schema: t.StructType, narrowed: tuple[str, ...]) -> list[tuple[str, ...]]:
    types = {field.name: field.dataType for field in schema.fields}
    lists = [name for name in narrowed if isinstance(types[name], t.ArrayType)]
    numbers = [name for name in narrowed if not isinstance(types[name], t.ArrayType)]
    size = -(-len(numbers) // _MOST_COUNTS) or 1
    groups = [tuple(numbers[start : start + size]) for start in range(0, len(numbers), size)]
    return groups + [(name,) for name in lists]


def _holds_infinite(column: Column, kind: t.ArrayType) -> Column:
    inner = kind.elementType
    if isinstance(inner, t.ArrayType):
        return F.exists(column, lambda value: _holds_infinite(value, inner))
    return F.arrays_overlap(column, F.expr(_INFINITIES))


def warn_of_infinite(
    schema: t.StructType, narrowed: tuple[str, ...], seen: Mapping[str, Any]
) -> None:
    """Warns of the columns that hold infinite values once they are float32."""
    told = []
    for index, names in enumerate(_groups(schema, narrowed)):
        rows = seen.get(f"infinite-{index}") or 0
        if rows:
            between = f" to {names[-1]!r}" if len(names) > 1 else ""
            told.append(f"{names[0]!r}{between} ({rows:,})")
    if told:
        _log.warning(
            "There are infinite numbers in rows of column %s, now that its doubles are float32, "
            "whose largest number is 3.4e38. If they were finite, convert with dtype='float64' "
            "(or None, which keeps types).",
            ", ".join(told),
        )

"""Doubles beyond float32, which become infinite: counted in what was written, and told once."""

from __future__ import annotations

import logging

from pyspark.sql import types as t

from sparkdl_runner.data.convert.plan import ConversionPlan, quoted
from sparkdl_runner.data.dataset.describe import Written
from sparkdl_runner.data.dataset.manifest import Manifest

_INFINITIES = "float('infinity'), float('-infinity')"
"""In SQL."""

_log = logging.getLogger(__name__)


def warn_of_infinite(plan: ConversionPlan, written: Written, manifest: Manifest) -> None:
    """Warns of the columns that hold infinite values now that they are float32.

    The footers name the few columns that may hold one. Spark reads these, and no others.
    """
    columns = [
        field
        for field in plan.df.schema.fields
        if field.name in plan.narrowed and field.name in manifest.may_be_infinite
    ]
    if not columns:
        return
    files = plan.df.sparkSession.read.schema(t.StructType(columns)).parquet(written.url)
    counts = files.selectExpr(
        *[f"count_if({_is_infinite(quoted(field.name), field.dataType)})" for field in columns]
    ).collect()[0]
    infinite = [
        f"{column.name!r} ({rows:,})" for column, rows in zip(columns, counts, strict=True) if rows
    ]
    if infinite:
        _log.warning(
            "There are infinite numbers in rows of column %s, now that its doubles are float32, "
            "whose largest number is 3.4e38. If they were finite, convert with dtype='float64' "
            "(or None, which keeps types).",
            ", ".join(infinite),
        )


def _is_infinite(value: str, kind: t.DataType) -> str:
    """In SQL, whether a value or one in its lists is infinite."""
    if not isinstance(kind, t.ArrayType):
        return f"{value} in ({_INFINITIES})"
    if not isinstance(kind.elementType, t.ArrayType):
        return f"arrays_overlap({value}, array({_INFINITIES}))"
    return f"exists({value}, inner -> {_is_infinite('inner', kind.elementType)})"

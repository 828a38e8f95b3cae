"""What a Spark job counts of the rows that it writes: nulls, lengths, sizes and a digest."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t

from sparkdl_runner.data.convert.nulls import null_inside
from sparkdl_runner.data.convert.plan import is_image, quoted
from sparkdl_runner.data.dataset.describe import Written

POSITION = "__sparkdl_runner_position"
"""The column that holds each row's partition and position while rows are written."""

_MOST_COMPILED = 100
"""Columns up to which Spark compiles a whole stage, too (spark.sql.codegen.maxFields)."""

_WITHOUT_STATISTICS = (t.StringType, t.BinaryType, t.TimestampType)
"""Types whose nulls the footers may not count: long values, and int96 timestamps."""

_BYTES: dict[type[t.DataType], int] = {
    t.BooleanType: 1,
    t.ByteType: 1,
    t.ShortType: 2,
    t.IntegerType: 4,
    t.FloatType: 4,
    t.DateType: 4,
    t.DecimalType: 16,
}
"""Of a value once it is decoded; of all others 8."""


def measures(
    schema: t.StructType,
    only: tuple[str, bool] | None = None,
    prefix: str = "",
) -> list[Column]:
    """Aggregates over all rows, named so that :func:`read_measures` finds them again.

    Nulls of most plain columns are left out, and how many numbers lists hold: the Parquet footers
    of the same job count them.

    Args:
        schema: Of what is measured.
        only: A column and its value in the rows that count; by default all do.
        prefix: What the names begin with.
    """

    def add(name: str, aggregate: Any, value: Column) -> None:
        counted = value if only is None else F.when(F.col(quoted(only[0])) == only[1], value)
        aggregates.append(aggregate(counted).alias(f"{prefix}{name}"))

    aggregates: list[Column] = []
    add("rows", F.count, F.lit(1))
    add("digest", F.bit_xor, _row_digest(schema))
    for index, field in enumerate(schema.fields):
        kind = field.dataType
        if not isinstance(kind, (t.ArrayType, *_WITHOUT_STATISTICS)) and not is_image(kind):
            continue
        column = F.col(quoted(field.name))
        is_null = column.isNull()
        if isinstance(kind, t.ArrayType):
            inside = null_inside(column, kind)
            is_null = is_null if inside is None else is_null | inside
        add(f"nulls-{index}", F.count, F.when(is_null, 1))
        for depth, (shortest, longest) in enumerate(_lengths(column, kind)):
            add(f"low-{index}-{depth}", F.min, shortest)
            add(f"high-{index}-{depth}", F.max, longest)
        size = _size_of_row(column, kind)
        if size is not None:
            add(f"most-{index}", F.max, size)
            if _leaf(kind) is None:
                add(f"bytes-{index}", F.sum, size)
    return aggregates


def _row_digest(schema: t.StructType) -> Column:
    """A checksum of a row. It includes the row's position, so that order counts.

    The hash skips nulls, so the column's number stands before each value. Spark compiles the body
    of no lambda: to compile thousands of arguments takes longer than to hash their values.
    """
    parts = [POSITION]
    for index, name in enumerate(schema.names):
        parts += [str(index), quoted(name)]
    digest = f"xxhash64({', '.join(parts)})"
    if len(schema) > _MOST_COMPILED:
        digest = f"transform(array(0), __sparkdl_runner_unused -> {digest})[0]"
    return F.expr(digest)


def _lengths(column: Column, kind: t.DataType) -> list[tuple[Column, Column]]:
    """The shortest and the longest list in one row, for each depth; an image's three sizes."""
    if is_image(kind):
        return [(column[part],) * 2 for part in ("height", "width", "nChannels")]
    lengths: list[tuple[Column, Column]] = []
    while isinstance(kind, t.ArrayType):
        depth, kind = len(lengths), kind.elementType
        low = _extreme_length(column, depth, F.array_min)
        lengths.append((low, _extreme_length(column, depth, F.array_max)))
    return lengths


def _extreme_length(column: Column, depth: int, pick: Any) -> Column:
    """Applies ``pick`` to the lengths of the lists ``depth`` levels down in one row."""
    if depth == 0:
        return F.when(column.isNotNull(), F.size(column))
    inner_lengths = F.transform(column, lambda inner: _extreme_length(inner, depth - 1, pick))
    picked: Column = pick(inner_lengths)
    return picked


def _size_of_row(column: Column, kind: t.DataType) -> Column | None:
    """Bytes of a row's values once decoded; None where its type or its one length says that."""
    if is_image(kind):
        sizes = [F.coalesce(F.octet_length(column[part]), F.lit(0)) for part in ("origin", "data")]
        return sizes[0] + sizes[1] + 4 * 4  # Arrow has four numbers of a null, too.
    if isinstance(kind, t.ArrayType):
        flat = not isinstance(kind.elementType, t.ArrayType)
        return None if flat and _leaf(kind) else _size(column, kind)
    return F.octet_length(column) if _leaf(kind) is None else None


def _size(column: Column, kind: t.DataType) -> Column:
    if not isinstance(kind, t.ArrayType):
        return F.octet_length(column)
    inner = kind.elementType
    width = _leaf(inner)
    if width is not None and not isinstance(inner, t.ArrayType):
        return F.when(column.isNotNull(), F.size(column)) * width
    if isinstance(inner, t.StringType):
        return F.octet_length(F.concat_ws("", column))  # Compiled, as F.aggregate is not.

    def plus(so_far: Column, value: Column) -> Column:
        return so_far + F.coalesce(_size(value, inner), F.lit(0))

    return F.aggregate(column, F.lit(0).cast("long"), plus)


def _leaf(kind: t.DataType) -> int | None:
    """Bytes of a number, also of those in lists; None for texts, bytes and images."""
    while isinstance(kind, t.ArrayType):
        kind = kind.elementType
    if isinstance(kind, (t.StringType, t.BinaryType, t.StructType)):
        return None
    return _BYTES.get(type(kind), 8)


def read_measures(url: str, schema: t.StructType, seen: dict[str, Any]) -> Written:
    """What was counted of the files in ``url``, by the names that ``measures`` gave."""
    null_counts: dict[str, int] = {}
    list_lengths: dict[str, tuple[int | None, ...]] = {}
    decoded_bytes: dict[str, int] = {}
    most_row_bytes: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name, width = field.name, _leaf(field.dataType)
        if f"nulls-{index}" in seen:
            null_counts[name] = seen[f"nulls-{index}"]
        highs: list[int] = []
        lengths: list[int | None] = []
        while (low_name := f"low-{index}-{len(lengths)}") in seen:
            low, high = seen[low_name], seen[f"high-{index}-{len(lengths)}"]
            # Without any list at this depth there is no length: 0, as for an empty data set.
            lengths.append((low or 0) if low == high else None)
            highs.append(high or 0)
        if lengths:
            list_lengths[name] = tuple(lengths)
        if f"bytes-{index}" in seen:
            decoded_bytes[name] = seen[f"bytes-{index}"] or 0
        if f"most-{index}" in seen:
            most_row_bytes[name] = seen[f"most-{index}"] or 0
        elif len(highs) == 1 and width is not None:
            most_row_bytes[name] = highs[0] * width
    digest = f"{(seen['digest'] or 0) & (1 << 64) - 1:016x}" if "digest" in seen else None
    return Written(
        url=url,
        rows=seen.get("rows"),
        content_digest=digest,
        null_counts=null_counts,
        list_lengths=list_lengths,
        decoded_bytes=decoded_bytes,
        most_row_bytes=most_row_bytes,
    )

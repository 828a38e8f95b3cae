"""Which Spark types can be converted, and what becomes of them before they are written."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

IMAGE_FIELDS = ("origin", "height", "width", "nChannels", "mode", "data")
"""The fields of Spark's ImageSchema, in its order."""

DTYPES = (None, "float32", "float64")

_SCALARS = (
    t.NumericType,
    t.BooleanType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
    t.StringType,
    t.BinaryType,
)


def is_vector(data_type: t.DataType) -> bool:
    """Whether it is the vector of ``pyspark.ml`` or of ``pyspark.mllib``."""
    return isinstance(data_type, t.UserDefinedType) and data_type.module() in (
        "pyspark.ml.linalg",
        "pyspark.mllib.linalg",
    )


def is_image(data_type: t.DataType) -> bool:
    """Whether it is Spark's ImageSchema."""
    return isinstance(data_type, t.StructType) and tuple(data_type.names) == IMAGE_FIELDS


def check_columns(schema: t.StructType) -> None:
    """Checks that each column can be converted.

    Raises:
        ValueError: There are no columns, two have one name, or a name has a dot.
        TypeError: A column is of a type that has no place in a tensor.
    """
    if not schema.fields:
        raise ValueError("The DataFrame has no columns: select at least one.")
    repeated = [name for name, count in Counter(schema.names).items() if count > 1]
    if repeated:
        raise ValueError(
            f"The DataFrame has more than one column called {repeated[0]!r}: rename one, since a "
            "batch is a dict by column name."
        )
    dotted = [name for name in schema.names if "." in name]
    if dotted:
        raise ValueError(
            f"Column {dotted[0]!r} has a dot in its name, by which Parquet's readers mean a part "
            f"of a column: rename it, to {dotted[0].replace('.', '_')!r} say."
        )
    bad = [f for f in schema.fields if not _is_supported(f.dataType, top=True)]
    if bad:
        listed = ", ".join(f"{f.name!r} ({f.dataType.simpleString()})" for f in bad)
        raise TypeError(
            f"Cannot convert column {listed}: supported are numbers, bool, date, timestamp, "
            "string, binary, arrays of these, ML vectors, and Spark's image struct. Drop the "
            "column, or select its parts as columns of their own."
        )


def _is_supported(data_type: t.DataType, *, top: bool) -> bool:
    if isinstance(data_type, t.ArrayType):
        return _is_supported(data_type.elementType, top=False)
    if is_vector(data_type) or is_image(data_type):
        return top
    return isinstance(data_type, _SCALARS)


def prepare(df: DataFrame, dtype: str | None) -> DataFrame:
    """Turns ML vectors into arrays, and floating point numbers at any depth into ``dtype``.

    Args:
        df: What passed :func:`check_columns`.
        dtype: ``"float32"``, ``"float64"``, or ``None`` to leave numbers as they are (vectors
            hold float64).
    """
    columns = []
    for field in df.schema.fields:
        column = df[quoted(field.name)]
        target = _with_dtype(field.dataType, dtype)
        if is_vector(field.dataType):
            from pyspark.ml.functions import vector_to_array

            array = vector_to_array(column, dtype or "float64")
            # vector_to_array raises on null; a null row is to be counted and named instead.
            column = F.when(column.isNotNull(), array) if field.nullable else array
            column = column.alias(field.name)
        elif target != field.dataType:
            column = column.cast(target).alias(field.name, metadata=field.metadata)
        columns.append(column)
    return df.select(*columns)


def _with_dtype(data_type: t.DataType, dtype: str | None) -> t.DataType:
    if isinstance(data_type, t.ArrayType):
        return t.ArrayType(_with_dtype(data_type.elementType, dtype), data_type.containsNull)
    if dtype == "float32" and isinstance(data_type, t.DoubleType):
        return t.FloatType()
    if dtype == "float64" and isinstance(data_type, t.FloatType):
        return t.DoubleType()
    return data_type


def list_depth(data_type: t.DataType) -> int:
    """How many lists deep the type is: 0 for a number, 1 for an array of numbers."""
    depth = 0
    while isinstance(data_type, t.ArrayType):
        depth += 1
        data_type = data_type.elementType
    return depth


def extreme_length(column: Column, depth: int, pick: Any) -> Column:
    """The smallest or largest length of the lists ``depth`` levels down in one row.

    Args:
        column: An array column.
        depth: 0 for the array itself, 1 for the arrays in it.
        pick: ``array_min`` or ``array_max``.
    """
    if depth == 0:
        return F.when(column.isNotNull(), F.size(column))
    inner_lengths = F.transform(column, lambda inner: extreme_length(inner, depth - 1, pick))
    picked: Column = pick(inner_lengths)
    return picked


def null_inside(column: Column, array: t.ArrayType) -> Column | None:
    """Whether an array that is not null itself holds a null, or ``None`` if its type rules it out.

    ``array_contains`` of a value that is not there is null exactly if the array holds a null.
    Spark compiles it, while it interprets ``exists``, which takes half as long as writing the
    array does. So ``exists`` only looks at the rare array that holds the value by chance.
    """
    element = array.elementType
    if isinstance(element, t.ArrayType):
        if not array.containsNull and not _may_hold_null(element):
            return None

        def holds_null(inner: Column) -> Column:
            deeper = null_inside(inner, element)
            return inner.isNull() if deeper is None else inner.isNull() | deeper

        return F.exists(column, holds_null)
    if not array.containsNull:
        return None
    rare = _rare_value(element)
    if rare is None:
        return F.exists(column, F.isnull)
    found = F.array_contains(column, F.lit(rare).cast(element))
    return F.when(found.isNull(), True).when(found, F.exists(column, F.isnull)).otherwise(False)


def _may_hold_null(array: t.ArrayType) -> bool:
    element = array.elementType
    inside = isinstance(element, t.ArrayType) and _may_hold_null(element)
    return array.containsNull or inside


def _rare_value(data_type: t.DataType) -> Any:
    if isinstance(data_type, t.FractionalType) and not isinstance(data_type, t.DecimalType):
        return 1.2345e-39
    if isinstance(data_type, t.StringType):
        return "\x00\x01\x02"
    bits = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
    for integral, size in bits.items():
        if isinstance(data_type, integral):
            return -(2 ** (size - 1)) + 1
    return None


def quoted(name: str) -> str:
    """A column's name as SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"

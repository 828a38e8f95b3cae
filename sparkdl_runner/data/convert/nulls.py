"""Whether an array of Spark's holds a null, at what it costs least."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as t


def null_inside(column: Column, array: t.ArrayType) -> Column | None:
    """Whether an array that is not null itself holds a null, or ``None`` if its type rules it out.

    ``array_contains`` of an absent value is null exactly if the array holds a null. Spark compiles
    it, but interprets ``exists``, which takes half as long as writing the array does. So ``exists``
    runs only for the rare array that holds the value by chance.
    """
    element = array.elementType
    if isinstance(element, t.ArrayType):
        if not _may_hold_null(array):
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
    is_rare_there = F.array_contains(column, F.lit(rare).cast(element))
    return (
        F.when(is_rare_there.isNull(), True)
        .when(is_rare_there, F.exists(column, F.isnull))
        .otherwise(False)
    )


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

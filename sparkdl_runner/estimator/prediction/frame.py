"""The columns of a DataFrame, as a network takes them: what is checked, and what Java does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl_runner.network.columns import Column, null_sentence
from sparkdl_runner.network.predictor import Description, matrices
from sparkdl_runner.training.fitting.network_columns import type_of

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_SPARK_TYPES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
}


def require_frame(frame: Any, verb: str) -> None:
    """Raises a TypeError for what is no DataFrame of Spark's, such as one of pandas."""
    if not hasattr(frame, "sparkSession"):
        raise TypeError(
            f"{verb} takes a Spark DataFrame, not {type(frame).__module__}."
            f"{type(frame).__qualname__}. Of what is in this process's memory, "
            "spark.createDataFrame(…) makes one."
        )


def with_float_type(columns: Sequence[Column], network: Any) -> tuple[Column, ...]:
    """Columns of fractions in the type that the network computes in, if it has one."""
    floats = {str(one.dtype).removeprefix("torch.") for one in network.parameters()} & {
        "float32",
        "float64",
    }
    if len(floats) != 1:
        return tuple(columns)
    (dtype,) = floats
    is_float = ("float32", "float64")
    return tuple(replace(one, dtype=dtype) if one.dtype in is_float else one for one in columns)


def as_network_takes(
    frame: DataFrame, description: Description
) -> tuple[Description, list[SparkColumn]]:
    """The columns as Java hands them to Python, and the description of a network that takes these.

    Vectors become arrays, dates and such become numbers. Columns of numbers that the network takes
    as one matrix become one array: Spark hands over an array of 33 numbers in less time than 33
    columns.

    Raises:
        ValueError: A column is not there, or is not of the type that the network takes.
    """
    from pyspark.sql import functions as f

    joined = matrices(description)
    in_matrix = {name for names in joined.values() for name in names}
    taken = {}
    for column in description.columns:
        value = _as_taken(frame, column)
        # pandas knows no nulls among numbers, and each column of a matrix may have another rule
        # for them: Java sees to them.
        if column.name in in_matrix or not hasattr(f, "arrow_udf"):
            value = _without_nulls(frame, column, value)
        taken[column.name] = value
    columns = {column.name: column for column in description.columns}
    arguments = dict(description.inputs.arguments)
    given: list[tuple[Column, SparkColumn]] = []
    for argument, names in joined.items():
        found = columns[names[0]].dtype
        dtype = found if found in ("float32", "float64") else "float32"
        numbers = [_cast(taken.pop(name), _SPARK_TYPES[found], dtype) for name in names]
        array = Column(name=argument, kind="list", dtype=dtype, shape=(len(names),))
        given.append((array, f.array(*numbers)))
        arguments[argument] = (argument,)
    given += [(columns[name], value) for name, value in taken.items()]
    inputs = replace(description.inputs, arguments=arguments)
    of_given = replace(description, inputs=inputs, columns=tuple(column for column, _ in given))
    return of_given, [value for _, value in given]


def _without_nulls(frame: DataFrame, column: Column, value: SparkColumn) -> SparkColumn:
    """A column without nulls among its numbers, or an error where the rule says so."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    field = frame.schema[column.name]
    if column.kind == "image" or column.nulls == "mask":
        return value
    if column.kind == "number":
        if not field.nullable:
            return value
        instead = _refusal(column) if column.nulls == "error" else f.lit(column.fill)
        return f.coalesce(value, instead.cast(_SPARK_TYPES[column.dtype]))
    kind = field.dataType
    if not isinstance(kind, t.ArrayType) or isinstance(kind.elementType, t.ArrayType):
        return value
    if not kind.containsNull:
        return value
    # array_contains gives null for a list that has nulls and not this number, so one fast loop
    # finds them. Only a list that has the number itself is looked through one by one.
    rare = f.lit(-3.0e-39).cast(kind.elementType)
    if not isinstance(kind.elementType, (t.FloatType, t.DoubleType)):
        return value  # Of whole numbers with nulls, pandas makes fractions with NaN.
    has_rare = f.array_contains(value, rare)
    has_null = f.when(has_rare, f.exists(value, lambda one: one.isNull())).otherwise(
        has_rare.isNull()
    )
    has_nulls = value.isNotNull() & has_null
    if column.nulls == "error":
        return f.when(has_nulls, _refusal(column)).otherwise(value)
    fill = f.lit(column.fill).cast(kind.elementType)
    return f.when(has_nulls, f.transform(value, lambda one: f.coalesce(one, fill))).otherwise(value)


def _refusal(column: Column) -> SparkColumn:
    from pyspark.sql import functions as f

    return f.raise_error(f.lit(null_sentence(column.name)))


def _cast(value: SparkColumn, found: str, dtype: str) -> SparkColumn:
    """A column of Spark's type ``found`` as one of ``dtype``; a cast is a call to Java."""
    wanted = _SPARK_TYPES[dtype]
    return value if found == wanted else value.cast(wanted)


def _as_taken(frame: DataFrame, column: Column) -> SparkColumn:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    kind = type_of(frame.schema, column.name)
    value = f.col(f"`{column.name}`")
    if column.kind == "image":
        _require(isinstance(kind, t.BinaryType), column, kind, "encoded images in a binary column")
        return value
    if column.kind == "list":
        if isinstance(kind, VectorUDT):
            dtype = "float32" if column.dtype == "float32" else "float64"
            # vector_to_array raises on null, and Python goes by the column's rule for nulls.
            return f.when(value.isNotNull(), vector_to_array(value, dtype))
        inner, depth = kind, 0
        while isinstance(inner, t.ArrayType):
            inner, depth = inner.elementType, depth + 1
        fits = depth == len(column.shape) and isinstance(inner, (t.NumericType, t.BooleanType))
        _require(
            fits, column, kind, "arrays of numbers" + f", {len(column.shape)} deep" * (depth > 0)
        )
        return value
    if isinstance(kind, t.DateType):
        return f.expr(f"unix_date(`{column.name}`)")
    if isinstance(kind, t.TimestampType):
        return f.expr(f"unix_micros(`{column.name}`)")
    _require(isinstance(kind, (t.NumericType, t.BooleanType)), column, kind, "a number")
    return _cast(value, kind.simpleString(), column.dtype)


def _require(fits: bool, column: Column, kind: DataType, expected: str) -> None:
    if not fits:
        raise ValueError(
            f"The column {column.name!r} is of type {kind.simpleString()}, and the model takes "
            f"{expected} there. Cast it, or rename the column that is meant to this name."
        )

"""The columns of a DataFrame, as a network takes them: what is checked, and what Java does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import functions as f
from pyspark.sql import types as t

from sparkdl_runner.tensors.columns import Column, null_sentence
from sparkdl_runner.tensors.predictor import Description, matrices
from sparkdl_runner.training.fitting.network_columns import type_of

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

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


def in_session_of(frame: Any) -> AbstractContextManager[None]:
    """Has ranks run in a Spark Connect DataFrame's session: a search's threads have none."""
    session = getattr(frame, "sparkSession", None)
    if session is None or getattr(session, "_sc", None) is not None:
        return nullcontext()  # A classic one, of which a process has only one.
    from sparkdl_runner.launch.driver.connect.session import as_active

    return as_active(session)


def with_float_type(columns: Sequence[Column], network: Any) -> tuple[Column, ...]:
    """Columns of fractions in the type that the network computes in, if it has one."""
    floats = {str(parameter.dtype).removeprefix("torch.") for parameter in network.parameters()} & {
        "float32",
        "float64",
    }
    if len(floats) != 1:
        return tuple(columns)
    (dtype,) = floats
    is_float = ("float32", "float64")
    return tuple(
        replace(column, dtype=dtype) if column.dtype in is_float else column for column in columns
    )


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
    joined = matrices(description)
    in_matrix = {name for names in joined.values() for name in names}
    taken = {}
    for column in description.columns:
        value, leaf = _as_taken(frame, column)
        # pandas knows no nulls among numbers, and each column of a matrix may have another rule
        # for them: Java sees to them.
        if column.name in in_matrix or not hasattr(f, "arrow_udf"):
            value = _without_nulls(frame, column, value, leaf)
        taken[column.name] = value
    columns = {column.name: column for column in description.columns}
    arguments = dict(description.inputs.arguments)
    given: list[tuple[Column, SparkColumn]] = []
    for argument, names in joined.items():
        first_dtype = columns[names[0]].dtype
        dtype = first_dtype if first_dtype in ("float32", "float64") else "float32"
        numbers = [taken.pop(name) for name in names]
        if first_dtype != dtype:  # Each cast is a call to Java.
            numbers = [number.cast(_SPARK_TYPES[dtype]) for number in numbers]
        array = Column(name=argument, kind="list", dtype=dtype, shape=(len(names),))
        given.append((array, f.array(*numbers)))
        arguments[argument] = (argument,)
    given += [(columns[name], value) for name, value in taken.items()]
    inputs = replace(description.inputs, arguments=arguments)
    of_given = replace(description, inputs=inputs, columns=tuple(column for column, _ in given))
    return of_given, [value for _, value in given]


def _as_taken(frame: DataFrame, column: Column) -> tuple[SparkColumn, str]:
    """A column as Python gets it, and Spark's name for the type of its numbers.

    Whole numbers stay of the frame's type: Java's cast would cut off what the model's does not
    hold, which Python refuses.
    """
    kind = type_of(frame.schema, column.name)
    value = f.col(f"`{column.name}`")
    if column.kind == "image":
        _require(isinstance(kind, t.BinaryType), column, kind, "encoded images in a binary column")
        return value, "binary"
    if column.kind == "list" and isinstance(kind, VectorUDT):
        dtype = "float32" if column.dtype == "float32" else "float64"
        # vector_to_array raises on null, and Python goes by the column's rule for nulls.
        return f.when(value.isNotNull(), vector_to_array(value, dtype)), _SPARK_TYPES[dtype]
    inner, depth = kind, 0
    while isinstance(inner, t.ArrayType):
        inner, depth = inner.elementType, depth + 1
    leaf, convert = _NUMBERS.get(type(inner), (inner.simpleString(), None))
    is_number = convert is not None or isinstance(inner, (t.NumericType, t.BooleanType))
    expected = "arrays of numbers" + f", {len(column.shape)} deep" * (depth > 0)
    expected = expected if column.kind == "list" else "a number"
    _require(is_number and depth == len(column.shape), column, kind, expected)
    if convert is not None:
        value = _at_depth(depth, convert, value)
    wanted = _SPARK_TYPES[column.dtype]
    if not depth and leaf != wanted and wanted in ("float", "double"):
        return value.cast(wanted), wanted
    return value, leaf


def _at_depth(
    depth: int, convert: Callable[[SparkColumn], SparkColumn], value: SparkColumn
) -> SparkColumn:
    """Numbers, lists of them, or lists of lists, each converted."""
    if depth == 0:
        return convert(value)
    return f.transform(value, lambda item: _at_depth(depth - 1, convert, item))


def _microseconds_of_utc(moment: SparkColumn) -> SparkColumn:
    """Of a moment without a time zone, as if it was in UTC, whatever zone the session has."""
    return f.unix_micros(f.concat(moment.cast("string"), f.lit("Z")).cast("timestamp"))


# By Spark's type: the type of the number that the loader makes of it, and how Java makes it.
_NUMBERS: dict[type, tuple[str, Callable[[SparkColumn], SparkColumn]]] = {
    t.DateType: ("int", f.unix_date),
    t.TimestampType: ("bigint", f.unix_micros),
    t.TimestampNTZType: ("bigint", _microseconds_of_utc),
    t.DecimalType: ("double", lambda decimal: decimal.cast("double")),
}


def _without_nulls(frame: DataFrame, column: Column, value: SparkColumn, leaf: str) -> SparkColumn:
    """A column without nulls among its numbers, or an error where the rule says so."""
    field = frame.schema[column.name]
    if column.kind == "image" or column.nulls == "mask":
        return value
    if column.kind == "list":
        return _lists_without_nulls(column, field.dataType, value, leaf)
    return f.coalesce(value, _instead(column, leaf)) if field.nullable else value


def _lists_without_nulls(
    column: Column, kind: t.DataType, value: SparkColumn, leaf: str
) -> SparkColumn:
    if not isinstance(kind, t.ArrayType):
        return value  # Vectors hold no nulls.
    inner = kind.elementType
    if isinstance(inner, t.ArrayType):
        return f.transform(value, lambda item: _lists_without_nulls(column, inner, item, leaf))
    if not kind.containsNull:
        return value
    # array_contains gives null for a list that has nulls and not this number, so one fast loop
    # finds them. Only a list that has the number itself is looked through one by one.
    rare = f.lit(-3.0e-39 if leaf in ("float", "double") else -113).cast(leaf)
    has_rare = f.array_contains(value, rare)
    has_null = f.when(has_rare, f.exists(value, lambda number: number.isNull())).otherwise(
        has_rare.isNull()
    )
    filled = f.transform(value, lambda number: f.coalesce(number, _instead(column, leaf)))
    return f.when(value.isNotNull() & has_null, filled).otherwise(value)


def _instead(column: Column, leaf: str) -> SparkColumn:
    """The expression that takes the place of a null: a number, or one that raises an error."""
    if column.fill is None:
        return f.raise_error(f.lit(null_sentence(column))).cast(leaf)
    return f.lit(column.fill).cast(leaf)


def _require(fits: bool, column: Column, kind: t.DataType, expected: str) -> None:
    if not fits:
        raise ValueError(
            f"The column {column.name!r} is of type {kind.simpleString()}, and the model takes "
            f"{expected} there. Cast it, or rename the column that is meant to this name."
        )

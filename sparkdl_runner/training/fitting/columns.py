"""The columns of a DataFrame that a training reads, checked and cast before they are converted."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as t

from sparkdl_runner.data.convert.plan import is_image, is_vector, quoted
from sparkdl_runner.tensors.outputs import Task

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MOST = 2**31 - 1
NOT_WHOLE = -_MOST - 1
"""The value in a conversion for a label that is no whole number."""


def require_columns(df: DataFrame, params: Mapping[str, Sequence[str]]) -> None:
    """Raises a ValueError where a Param names a column that the DataFrame has not.

    Args:
        df: The DataFrame.
        params: Column names by the Param that names them.
    """
    there = df.columns
    for param, names in params.items():
        for name in names:
            if name in there:
                if there.count(name) > 1:
                    raise ValueError(
                        f"{param} names {name!r}, and the DataFrame has {there.count(name)} "
                        "columns of that name: rename all but one."
                    )
                continue
            parts = name.split(".")
            if len(parts) > 1 and parts[0] in there:
                raise ValueError(
                    f"{param} names {name!r}, a field of the column {parts[0]!r}: make it a column "
                    f"of its own, by df.withColumn({'_'.join(parts)!r}, F.col({name!r}))."
                )
            near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{param} names {name!r}, and the DataFrame has no such column.{hint} It has: "
                f"{', '.join(there)}."
            )


def is_list(data_type: t.DataType) -> bool:
    """Whether a row of it holds several values."""
    return isinstance(data_type, t.ArrayType) or is_vector(data_type)


def check_types(
    df: DataFrame, labels: Mapping[str, Task], weight: str | None, images: Collection[str]
) -> None:
    """Raises a TypeError where a column cannot become a tensor of numbers.

    Args:
        df: Has only the columns that are read.
        labels: Tasks by label column.
        weight: The column of the rows' weights.
        images: Columns of encoded images.
    """
    for field in df.schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        inner = field.dataType
        while isinstance(inner, t.ArrayType):
            inner = inner.elementType
        if isinstance(inner, t.StringType):
            raise TypeError(
                f"The column {name!r} is {kind}, and a model takes numbers: make numbers of its "
                "values, by pyspark.ml.feature.StringIndexer in a Pipeline, say."
            )
        if isinstance(inner, t.BinaryType) and name not in images:
            raise TypeError(
                f"The column {name!r} is {kind}: where it holds encoded images, say to what size "
                f"they are to be brought, by images={{{name!r}: (height, width)}}."
            )
        is_number = isinstance(inner, (t.NumericType, t.BooleanType))
        if not (is_number or is_vector(inner) or is_image(inner) or name in images):
            raise TypeError(
                f"The column {name!r} is {kind}; a model takes numbers, arrays of numbers, "
                "vectors and images. Cast it, or leave it out."
            )
        is_class = labels.get(name) in ("binary", "multiclass")  # Cast to a whole number.
        if isinstance(inner, t.DecimalType) and not is_class:
            raise TypeError(
                f"The column {name!r} is {kind}, and a tensor has no decimals: cast it before the "
                f"fit, as by df.withColumn({name!r}, F.col({name!r}).cast('double'))."
            )
        if name == weight and not isinstance(field.dataType, t.NumericType):
            raise TypeError(
                f"sample_weight_col names {name!r}, which is {kind}; a weight is one number."
            )
        if labels.get(name) == "binary" and is_list(field.dataType):
            raise TypeError(
                f"The label column {name!r} is {kind}, and the task is binary: a label is one "
                "number, 0 or 1. For several labels a row at once say task='multilabel'."
            )


def whole_labels(df: DataFrame, labels: Collection[str]) -> DataFrame:
    """Casts labels to whole numbers, as those of classes are; what is none becomes ``NOT_WHOLE``.

    To raise for it in Spark would bury the reason under the traces that Spark prints.
    """
    for name in labels:
        if not is_fractional(df, name):
            continue
        label = F.col(quoted(name))
        whole = F.when(_is_whole(label), label.cast("int")).otherwise(NOT_WHOLE)
        df = df.withColumn(name, F.when(label.isNotNull(), whole))
    return df


def is_fractional(df: DataFrame, name: str) -> bool:
    """Whether a column of single numbers may hold fractions, by its type."""
    kind = df.schema[name].dataType
    return not (isinstance(kind, (t.IntegralType, t.BooleanType)) or is_list(kind))


def not_whole(df: DataFrame, name: str) -> str:
    """The sentence about a label that is not whole; finds one by a Spark job."""
    label = F.col(quoted(name))
    # None where the DataFrame has other rows each time that it is computed.
    row = df.where(label.isNotNull() & ~_is_whole(label)).select(label).first()
    return (
        f"The label column {name!r} holds {'fractions' if row is None else row[0]}, and labels of "
        "classes are whole numbers from 0: make them by pyspark.ml.feature.StringIndexer, or say "
        "task='regression'."
    )


def _is_whole(label: Column) -> Column:
    return (label % 1 == 0) & label.between(-_MOST, _MOST)


def split_condition(df: DataFrame, validation: float | str, seed: int) -> Column:
    """A condition that is true for the rows to validate with.

    It is null where a column of numbers holds other ones than 0 and 1: to raise for it in Spark
    would bury the reason under the traces that Spark prints.

    Args:
        df: The DataFrame.
        validation: A share of the rows, or the name of a column of booleans, or of 0 and 1.
        seed: Of the random choice of rows, where ``validation`` is a share.

    Raises:
        TypeError: The column is neither.
    """
    if not isinstance(validation, str):
        return F.rand(seed) < validation
    kind = df.schema[validation].dataType
    column = F.col(quoted(validation))
    if isinstance(kind, t.BooleanType):
        return F.coalesce(column, F.lit(False))
    if isinstance(kind, t.NumericType):
        return F.when(column == 1, True).when(column.isNull() | (column == 0), False)
    raise TypeError(
        f"validation names {validation!r}, which is {kind.simpleString()}; it must be boolean, or "
        "1 for the rows to validate with and 0 for all others."
    )


def no_split(df: DataFrame, validation: str) -> str:
    """The sentence about a validation column of other numbers; finds one by a Spark job."""
    column = F.col(quoted(validation))
    row = df.where(~column.isin(0, 1)).select(column).first()
    return (
        f"The validation column {validation!r} holds {'other numbers' if row is None else row[0]}, "
        "and it says 1 for the rows to validate with and 0 for all others."
    )

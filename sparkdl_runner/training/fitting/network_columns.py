"""Describes a DataFrame's columns for the network that takes them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.images import ImageSize

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# The loader's types for Spark's types of numbers, in training.
_DTYPES = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "date": "int32",
    "timestamp": "int64",
    "timestamp_ntz": "int64",
}


def network_columns(
    schema: StructType,
    names: Sequence[str],
    reading: Mapping[str, Any] | None = None,
    lengths: Mapping[str, Sequence[int | None]] | None = None,
) -> tuple[Column, ...]:
    """Describes the columns of a DataFrame that a network takes.

    Args:
        schema: Of the DataFrame.
        names: Which columns the network takes.
        reading: ``nulls``, ``fill_value``, ``pad`` and ``images``, as ``make_torch_dataloader``
            takes them.
        lengths: By column, the lengths of its lists at each depth where all are equal, or None.

    Raises:
        ValueError: A column is not there, or is of a type of which no tensor can be made.
    """
    return tuple(
        _column_of(schema, name, reading or {}, (lengths or {}).get(name, ())) for name in names
    )


def _column_of(
    schema: StructType, name: str, reading: Mapping[str, Any], lengths: Sequence[int | None]
) -> Column:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import types as t

    kind = type_of(schema, name)
    options: dict[str, Any] = {"name": name, "fill_value": reading.get("fill_value", 0)}
    options["nulls"] = _of(reading.get("nulls"), name, "error")
    images = reading.get("images") or {}
    if name in images:
        size = ImageSize.of(name, images[name])
        image = (size.height, size.width, size.mode)
        return Column(**options, kind="image", dtype="uint8", image=image, exif=size.exif)
    pad, depth = _of(reading.get("pad"), name, None), 0
    if isinstance(kind, VectorUDT):
        return Column(**options, kind="list", dtype="float64", shape=(*lengths, None)[:1], pad=pad)
    while isinstance(kind, t.ArrayType):
        depth, kind = depth + 1, kind.elementType
    dtype = "float64" if isinstance(kind, t.DecimalType) else _DTYPES.get(kind.simpleString())
    if dtype is None:
        raise ValueError(
            f"The column {name!r} is of type {schema[name].dataType.simpleString()}, of which no "
            "tensor can be made: give the model columns of numbers, of arrays or vectors of "
            "numbers, or encoded images with images={…}, as spark.read.format('binaryFile') reads "
            "them."
        )
    if not depth:
        return Column(**options, dtype=dtype)
    shape = tuple([*lengths, *[None] * depth][:depth])
    return Column(**options, kind="list", dtype=dtype, shape=shape, pad=pad)


def _of(value: Any, name: str, default: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get(name, default)
    return default if value is None else value


def type_of(schema: StructType, name: str) -> DataType:
    if name not in schema.names:
        near = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"The DataFrame has no column {name!r}, which the model takes.{hint} It has: "
            f"{', '.join(schema.names)}."
        )
    return schema[name].dataType

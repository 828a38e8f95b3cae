"""The columns that a model gets, as numbers and arrays: MLflow takes no ML vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.nearest import did_you_mean
from sparkdl_runner.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def features(frame: DataFrame, place: str, names: list[str] | None, signature: Any) -> list[Column]:
    """The columns that the model is given.

    Args:
        frame: The rows.
        place: What a person calls them.
        names: Which columns were asked for; None for what follows from the model and the rows.
        signature: MLflow's, of the model; None if it has none.

    Returns:
        Columns of numbers and of arrays; one column for a model that takes one tensor.

    Raises:
        ConfigError: They are not there, do not fit the model, or it is not clear which they are.
    """
    inputs = signature.inputs if signature is not None else None
    named = inputs if inputs is not None and inputs.has_input_names() else None
    # MLflow checks the types of columns itself, and takes a tensor as it comes.
    tensor = None
    if inputs is not None and named is None and inputs.is_tensor_spec():
        tensor = inputs.inputs[0]
    if named is not None:
        names = _names_of_model(frame, names, named)
    elif names is None:
        names = [_only_array(frame, place, tensor)]
    for name in names:
        if name not in frame.columns:
            raise ConfigError(
                f"{place} has no column {name!r}, which the model is to be given"
                f"{did_you_mean(name, frame.columns)}"
            )
    if tensor is not None:
        return [_one_tensor(frame, names, tensor)]
    if named is None:
        return [_without_vector(frame, name) for name in names]
    from pyspark.sql.functions import struct

    # As a struct, since MLflow matches single columns to the model's by position, not by name.
    specs = named.input_dict()
    return [struct(*[_as_named(frame, name, specs.get(name)).alias(name) for name in names])]


# Spark's names for MLflow's types of numbers.
_NUMBERS = {
    "float": "float",
    "double": "double",
    "integer": "int",
    "long": "long",
    "boolean": "boolean",
}


def spark_type(tensor: Any) -> str:
    """The type of one row of a tensor: arrays within arrays, of its numbers."""
    depth = len(tensor.shape) - 1
    return "array<" * depth + _number(tensor) + ">" * depth


def _number(tensor: Any) -> str:
    return {"float64": "double", "int32": "int", "int64": "long"}.get(tensor.type.name, "float")


def _names_of_model(frame: DataFrame, names: list[str] | None, named: Any) -> list[str]:
    """The columns that a model names, or those of them that the person has chosen."""
    known = named.input_names()
    required = named.required_input_names()
    if names is None:
        return [name for name in known if name in required or name in frame.columns]
    if missing := [name for name in required if name not in names]:
        raise ConfigError(
            f"features lacks {missing[0]!r}, which the model takes: it takes {', '.join(known)}."
        )
    return names


def _only_array(frame: DataFrame, place: str, tensor: Any) -> str:
    """The only column of arrays or vectors. Columns of numbers would have no known order."""
    arrays = [name for name in frame.columns if _is_array(frame, name)]
    if len(arrays) == 1:
        return arrays[0]
    size = None if tensor is None else _numbers_in_a_row(tensor)
    or_numbers = ""
    if not arrays and size is not None:
        wanted = "one column" if size == 1 else f"{size} columns"
        or_numbers = f", or which {wanted} of numbers, in the order of the training"
    raise ConfigError(
        f"{place} has {len(arrays)} columns of arrays or vectors, and the model takes one: say by "
        f"features which of {', '.join(frame.columns)} it is{or_numbers}."
    )


def _one_tensor(frame: DataFrame, names: list[str], tensor: Any) -> Column:
    """The column for a model that takes one tensor: a flat array, which MLflow brings into shape.

    A tensor of one dimension, ``[rows]``, takes a column of numbers.
    """
    from pyspark.sql.functions import array, col

    if -1 in tensor.shape[1:]:
        raise ConfigError(
            f"the model takes rows of sizes that may vary ({list(tensor.shape)}), and MLflow makes "
            "no tensor of such columns: log it once more with log_model(…, columns=…)."
        )
    number = _number(tensor)
    if len(names) == 1 and _is_array(frame, names[0]):
        flat = _flat(frame, names[0])
        return flat.cast(f"array<{number}>")
    for name in names:
        if _is_array(frame, name):
            raise ConfigError(
                f"features has {name!r}, a column of arrays, among others, and the model takes one "
                "tensor: give it one column of arrays or vectors, or columns of numbers."
            )
        if not _is_number(frame, name):
            kind = frame.schema[name].dataType.simpleString()
            raise ConfigError(
                f"the column {name!r} is of type {kind}, and the model takes numbers, or one "
                "column of arrays or vectors: choose others by features."
            )
    size = _numbers_in_a_row(tensor)
    if size is not None and size != len(names):
        raise ConfigError(
            f"the model takes {_counted(size, 'number')} of each row, and features has "
            f"{_counted(len(names), 'column')} of numbers ({', '.join(names)}): name as many as in "
            "the training, in the same order, or one column of arrays."
        )
    numbers = [col(f"`{name}`").cast(number) for name in names]
    return numbers[0] if len(tensor.shape) == 1 else array(*numbers)


def _as_named(frame: DataFrame, name: str, spec: Any) -> Column:
    """A column that the model names, cast to the type of number that the model takes."""
    from pyspark.sql.functions import col

    is_array = _is_array(frame, name)
    number = _number_of(spec, is_array)
    if number is not None and is_array:
        return _flat(frame, name).cast(f"array<{number}>")
    if number is not None and _is_number(frame, name):
        return col(f"`{name}`").cast(number)
    return _without_vector(frame, name)


def _number_of(spec: Any, is_array: bool) -> str | None:
    """Spark's name for the numbers that a model takes; None where it takes something else."""
    from mlflow.types.schema import Array, TensorSpec

    if isinstance(spec, TensorSpec):
        return _number(spec)
    kind = getattr(spec, "type", None)
    if is_array:
        kind = kind.dtype if isinstance(kind, Array) else None
    return _NUMBERS.get(getattr(kind, "name", ""))


def _flat(frame: DataFrame, name: str) -> Column:
    """A column of arrays as flat arrays, which MLflow can bring into the model's shape."""
    from pyspark.sql import types as t
    from pyspark.sql.functions import flatten

    column, kind = _without_vector(frame, name), frame.schema[name].dataType
    element = kind.elementType if isinstance(kind, t.ArrayType) else t.FloatType()
    while isinstance(element, t.ArrayType):
        column, element = flatten(column), element.elementType
    if not isinstance(element, (t.NumericType, t.BooleanType)):
        raise ConfigError(
            f"the column {name!r} is of type {kind.simpleString()}, and the model takes arrays of "
            "numbers: choose another by features."
        )
    return column


def _numbers_in_a_row(tensor: Any) -> int | None:
    """How many numbers of a tensor belong to a row; None where that may differ."""
    shape = tensor.shape[1:]
    return None if any(size < 0 for size in shape) else math.prod(shape)


def _without_vector(frame: DataFrame, name: str) -> Column:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.functions import col

    column = col(f"`{name}`")
    is_vector = isinstance(frame.schema[name].dataType, VectorUDT)
    return vector_to_array(column, "float32") if is_vector else column


def _is_array(frame: DataFrame, name: str) -> bool:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import ArrayType

    return isinstance(frame.schema[name].dataType, (ArrayType, VectorUDT))


def _is_number(frame: DataFrame, name: str) -> bool:
    from pyspark.sql.types import BooleanType, NumericType

    return isinstance(frame.schema[name].dataType, (NumericType, BooleanType))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")

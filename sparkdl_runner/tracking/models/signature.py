"""A network's inputs and outputs in MLflow's words, by which ``spark_udf`` knows Spark's types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def signature_of(
    rows: torch.Tensor,
    shape: Sequence[int],
    columns: Sequence[str] | None,
    predictions: torch.Tensor,
) -> Any:
    """The signature of a network.

    Args:
        rows: What the network takes, ``[rows, …]``.
        shape: The same with -1 for each size that may vary.
        columns: Spark's columns that a row is made of; None for a tensor without a name.
        predictions: What the network says to ``rows``, ``[rows, …]``.

    Returns:
        A ``mlflow.models.ModelSignature``.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import Array, ColSpec, Schema, TensorSpec

    if columns is None:
        given = [TensorSpec(rows.numpy().dtype, tuple(shape))]
    else:
        number = _given_type(rows)
        is_array = len(columns) == 1 and rows.ndim > 1
        given = [ColSpec(Array(number) if is_array else number, name) for name in columns]
    return ModelSignature(Schema(given), Schema([_output(predictions)]))


def _given_type(rows: torch.Tensor) -> Any:
    """The widest type of its kind: MLflow lets narrower ones in, and the model casts them."""
    from mlflow.types import DataType

    if rows.is_floating_point():
        return DataType.double
    return DataType.boolean if rows.numpy().dtype == bool else DataType.long


def _output(predictions: torch.Tensor) -> Any:
    """Of one row, a number or an array: of a tensor, MLflow makes an array too many."""
    from mlflow.types import DataType
    from mlflow.types.schema import Array, ColSpec, TensorSpec

    dtype = predictions.numpy().dtype
    number = DataType.from_numpy_type(dtype)
    if number is None or predictions.ndim not in (1, 2):
        return TensorSpec(dtype, (-1, *predictions.shape[1:]))
    return ColSpec(number if predictions.ndim == 1 else Array(number))

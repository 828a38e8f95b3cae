"""Warns once if whole numbers lose digits in the matrix of ``feature_cols``."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.decode.columns import DenseColumn
from sparkdl_runner.tensors.arrays import Array


def warn_if_rounded(column: DenseColumn, dtype: np.dtype[Any]) -> DenseColumn:
    """The column, which warns of the first number that the matrix's type rounds.

    Args:
        column: Of one number a row.
        dtype: The matrix's. float32 holds each whole number up to 2**24, float64 up to 2**53.
    """
    own = column.outputs[0].dtype
    if dtype.kind != "f" or own.kind not in "iu":
        return column
    most = 2 << np.finfo(dtype).nmant
    if np.iinfo(own).max <= most:
        return column
    has_warned = False

    def decode(array: pa.Array) -> tuple[Array, ...]:
        nonlocal has_warned
        (numbers,) = column.decode(array)
        if not has_warned and (numbers.max(initial=0) > most or numbers.min(initial=0) < -most):
            with np.errstate(invalid="ignore"):  # Of a number that is rounded to 2**63.
                lost = numbers[numbers.astype(dtype).astype(own) != numbers]
            if len(lost):
                has_warned = True
                warnings.warn(
                    f"feature_cols: column {column.name!r} holds {lost[0]}, which the matrix's "
                    f"{dtype} makes {int(dtype.type(lost[0]))}. Leave the column out of "
                    "feature_cols to have it as it is, or scale or index it before converting.",
                    stacklevel=2,
                )
        return (numbers,)

    return replace(column, decode=decode)

"""The values of a column as Arrow has them, without a copy where there are no nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .columns import Array, Column, Values


def values_of(column: Column, array: pa.Array) -> Values:
    """An array of numbers, of lists of numbers, or of bytes."""
    valid = _valid(array)
    if column.kind == "number":
        return Values(flat=_as_numpy(array), valid=valid)
    if column.kind == "image":
        return Values(flat=array.to_pylist(), valid=valid)
    lengths = []
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lengths.append(_as_numpy(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int64))
        array = array.flatten()
    return Values(
        flat=_as_numpy(array), lengths=tuple(lengths), valid=valid, valid_numbers=_valid(array)
    )


def _valid(array: pa.Array) -> Array | None:
    if not array.null_count:
        return None
    found: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _as_numpy(array: pa.Array) -> Any:
    """Numbers; a null is any number."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(0, array.type))
    return array.to_numpy()

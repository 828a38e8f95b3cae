"""The values of a column as pandas has them, as Arrow's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .columns import Column
from .errors import BadColumnError

if TYPE_CHECKING:
    import pandas as pd


def arrow_of(column: Column, series: pd.Series, *, keeps_nan: bool = False) -> pa.Array:
    """A series of numbers, dates, lists or arrays of these, or bytes.

    A missing number cannot be told from NaN in a series of floats. It is taken as null only where
    the column has a rule for nulls, or its numbers are whole.

    Args:
        column: What it holds.
        series: The values.
        keeps_nan: There are no nulls among its fractions, so NaN is NaN.
    """
    is_float = np.dtype(column.dtype).kind == "f"
    keeps_nan = is_float and (keeps_nan or column.nulls in ("error", "nan"))
    try:
        try:
            array = pa.array(series, from_pandas=not keeps_nan)
        except pa.ArrowException:
            array = pa.array([_plain(row) for row in series], from_pandas=not keeps_nan)
    except (pa.ArrowException, OverflowError) as error:
        raise BadColumnError(
            f"The column {column.name!r} is of type {series.dtype} and holds "
            f"{type(series.iloc[0]).__name__}: {error}."
        ) from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _plain(row: Any) -> Any:
    """A row as Arrow takes it, which is a vector of Spark's, a matrix, or a missing list."""
    import pandas as pd

    if hasattr(row, "toArray"):
        return row.toArray()
    if getattr(row, "ndim", 0) > 1:
        return row.tolist()
    return None if pd.api.types.is_scalar(row) and pd.isna(row) else row

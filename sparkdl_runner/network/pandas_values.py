"""The values of a column as pandas has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import Array, BadColumnError, Column, Values

if TYPE_CHECKING:
    import pandas as pd


def values_of(column: Column, series: pd.Series, *, is_arrows: bool = False) -> Values:
    """A series of numbers, of lists or arrays of numbers, or of bytes.

    A missing number cannot be told from NaN in a series of floats. It is taken as null only where
    the column has a rule for nulls.

    Args:
        column: What it holds.
        series: The values.
        is_arrows: The series is what Arrow made of an array of its own, in its order.
    """
    if column.kind == "number":
        return _numbers(column, series)
    rows = series.to_numpy(dtype=object)
    valid = None
    if series.isna().any():
        valid = ~np.fromiter((_is_null(row) for row in rows), dtype=np.bool_, count=len(rows))
    if column.kind == "image":
        return Values(flat=[None if _is_null(row) else bytes(row) for row in rows], valid=valid)
    present = rows if valid is None else rows[valid]
    flat, *inner = _flattened(column, present, is_arrows)
    lengths = np.zeros(len(rows), dtype=np.int64)
    lengths[slice(None) if valid is None else valid] = inner[0]
    valid_numbers = None
    if flat.dtype == object:
        found = np.array([one is not None for one in flat], dtype=np.bool_)
        valid_numbers = None if found.all() else found
        flat = np.array([column.fill if one is None else one for one in flat])
    elif flat.dtype.kind == "f" and column.nulls in ("fill", "mask"):
        found = ~np.isnan(flat)
        valid_numbers = None if found.all() else found
    return Values(
        flat=flat, lengths=(lengths, *inner[1:]), valid=valid, valid_numbers=valid_numbers
    )


def _numbers(column: Column, series: pd.Series) -> Values:
    kind = getattr(series.dtype, "kind", "O")
    if isinstance(series.dtype, np.dtype) and kind in "iub":
        return Values(flat=series.to_numpy())
    if isinstance(series.dtype, np.dtype) and kind == "f" and column.nulls in ("error", "nan"):
        return Values(flat=series.to_numpy())
    missing = series.isna().to_numpy()
    try:
        flat = series.to_numpy(dtype=np.float64 if kind in "fO" else None, na_value=column.fill)
    except (TypeError, ValueError):
        raise BadColumnError(
            f"The column {column.name!r} is of type {series.dtype} and holds "
            f"{series.dropna().iloc[0]!r}; the model takes numbers there."
        ) from None
    return Values(flat=flat, valid=~missing if missing.any() else None)


def _is_null(row: Any) -> bool:
    return row is None or (isinstance(row, float) and row != row)


def _flattened(column: Column, rows: Array, is_arrows: bool) -> list[Array]:
    """All numbers of lists within lists, and the lengths of the lists at each depth."""
    try:
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        if not len(rows):
            return [np.empty(0, dtype=column.dtype), *[lengths] * max(1, len(column.shape))]
        whole: Any = getattr(rows[0], "base", None) if is_arrows else None
        is_one = _are_parts(rows, whole, lengths)
        flat: Any = whole.reshape(-1) if is_one else np.concatenate(rows)
    except (TypeError, ValueError):
        raise BadColumnError(
            f"The column {column.name!r} holds {type(rows[0]).__name__}; the model takes lists or "
            "arrays of numbers there."
        ) from None
    if flat.ndim > 1:  # Of lists, NumPy makes a matrix where it can.
        inner = [
            np.full(int(np.prod((len(flat), *flat.shape[1:d]))), flat.shape[d])
            for d in range(1, flat.ndim)
        ]
        return [flat.reshape(-1), lengths, *inner]
    if flat.dtype == object and len(flat) and hasattr(flat[0], "__len__"):
        innermost, *inner = _flattened(column, flat, is_arrows)
        return [innermost, lengths, *inner]
    return [flat, lengths]


def _are_parts(rows: Array, whole: Any, lengths: Array) -> bool:
    """Whether rows of Arrow's, which are in order, are all of an array, without gaps."""
    return (
        isinstance(whole, np.ndarray)
        and whole.size == lengths.sum()
        and all(row.base is whole for row in rows)
    )

"""Arrow arrays to dense NumPy arrays, without a copy where Arrow's memory already is one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .decimals import floats_of
from .errors import UnexpectedNullError, WrongLengthError
from .exact import cast_exactly

Array = npt.NDArray[Any]

_NUMBERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_DTYPES = {
    pa.type_for_alias(name).id: np.dtype(name)
    for name in (*_NUMBERS, "float16", "float32", "float64")
}
_WIDENED = {pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}

_TYPES_KEPT = 256
"""Answers are kept by type: a table of thousands of columns has few types."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """How the innermost values of a column become numbers."""

    dtype: np.dtype[Any]
    """The type that torch gets."""
    steps: tuple[tuple[str, pa.DataType], ...] = ()
    """Steps on the Arrow array first, in order: ``("cast" | "view" | "decimal", type)``."""

    def numbers(self, array: pa.Array, fill: float | None) -> Array:
        """``[n]`` numbers; nulls become ``fill``, or are refused if that is None."""
        for step, arrow_type in self.steps:
            if step == "decimal":
                array = floats_of(array)
            elif step == "cast":
                array = cast_exactly(array, arrow_type)
            else:
                array = array.view(arrow_type)
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.uint8())
        if array.null_count:
            if fill is None:
                raise UnexpectedNullError
            # Through NumPy, as fill_null knows neither float16 nor NaN in an integer column.
            valid = validity(array)
            numbers = np.full(len(array), fill, dtype=self.dtype)
            numbers[valid] = as_numpy(array.drop_null())
            return numbers
        numbers = as_numpy(array)
        if self.dtype == np.bool_:
            return numbers.view(np.bool_)
        return numbers.astype(self.dtype, copy=False)


def holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether a tensor's type has this number, and would not silently change it, as 0.5 to 0."""
    if dtype.kind == "f":
        return True
    if dtype.kind == "b":
        return value in (0, 1)
    limits = np.iinfo(dtype)
    return float(value).is_integer() and limits.min <= value <= limits.max


@functools.lru_cache(maxsize=_TYPES_KEPT)
def leaf_of(arrow_type: pa.DataType, *, decimals: str = "error") -> Leaf | str:
    """How values of a type become numbers, or a sentence why they cannot."""
    types = pa.types
    if types.is_boolean(arrow_type):
        return Leaf(dtype=np.dtype(np.bool_))
    # torch has next to no operations for the unsigned types beyond uint8.
    for narrow, wide in _WIDENED.items():
        if arrow_type == narrow:
            return Leaf(dtype=_DTYPES[wide.id], steps=(("cast", wide),))
    if types.is_integer(arrow_type) or types.is_floating(arrow_type):
        return Leaf(dtype=_DTYPES[arrow_type.id])
    if types.is_date(arrow_type):
        steps = (("cast", pa.date32()), ("view", pa.int32()))
        return Leaf(dtype=np.dtype(np.int32), steps=steps)
    unit: pa.DataType | None = None
    if types.is_timestamp(arrow_type):
        unit = pa.timestamp("us", arrow_type.tz)
    elif types.is_duration(arrow_type):
        unit = pa.duration("us")
    elif types.is_time(arrow_type):
        unit = pa.time64("us")
    if unit is not None:
        return Leaf(dtype=np.dtype(np.int64), steps=(("cast", unit), ("view", pa.int64())))
    if types.is_decimal(arrow_type):
        if decimals == "float64":
            return Leaf(dtype=np.dtype(np.float64), steps=(("decimal", pa.float64()),))
        return (
            "torch has no decimal numbers. Pass decimals='float64' to have it as float64, which "
            "keeps about 16 digits, or cast the column before converting"
        )
    return "torch has no such type. Convert the column, or leave it out with columns=[…]"


def is_list(arrow_type: pa.DataType) -> bool:
    """Whether values of the type are lists, of whatever kind."""
    types = pa.types
    return bool(
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )


@functools.lru_cache(maxsize=_TYPES_KEPT)
def is_readable(arrow_type: pa.DataType) -> bool:
    """Whether a loader reads such values: numbers, texts and bytes, and lists of them."""
    while is_list(arrow_type) or pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    kind = str(arrow_type).removeprefix("large_").removesuffix("_view")
    is_word = kind in ("string", "binary") or pa.types.is_fixed_size_binary(arrow_type)
    return is_word or not isinstance(leaf_of(arrow_type, decimals="float64"), str)


def as_numpy(array: pa.Array) -> Array:
    """Numbers without nulls, ``[n]``, as they lie in Arrow's memory.

    Unlike ``Array.to_numpy`` it does not import pandas, which takes a fifth of a second.
    """
    if array.null_count:
        raise UnexpectedNullError
    dtype = _DTYPES[array.type.id]
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(data, dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize)


def validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Bool ``[n]``: which entries are not null."""
    if not array.null_count:
        return np.ones(len(array), dtype=np.bool_)
    return as_numpy(array.is_valid().cast(pa.uint8())).view(np.bool_)


def lists(array: pa.Array) -> tuple[Array, pa.Array]:
    """Splits an array of lists.

    Args:
        array: ``[n]`` lists of any kind, sliced or not.

    Returns:
        int64 ``[n + 1]`` offsets from 0, a null list having no values, and the values.
    """
    if array.null_count or pa.types.is_fixed_size_list(array.type):
        lengths = as_numpy(pc.fill_null(pc.list_value_length(array), 0))
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), array.flatten()
    offsets = as_numpy(array.offsets)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return offsets.astype(np.int64) - first, array.values.slice(first, last - first)


def dense(
    array: pa.Array,
    lengths: tuple[int, ...],
    leaf: Leaf,
    fill: float | None,
    *,
    masked: bool = False,
) -> tuple[Array, npt.NDArray[np.bool_] | None]:
    """Lists of fixed lengths, or plain values, as one dense array.

    Args:
        array: ``[n]``, nested as deep as ``lengths`` is long.
        lengths: The length of every list at each depth, from the outside in.
        leaf: How the innermost values become numbers.
        fill: What a null value becomes, and every value of a null list; None if there are none.
        masked: Whether to say what was null.

    Returns:
        ``[n, *lengths]`` numbers and, if ``masked``, bool of the same shape: what was not null.

    Raises:
        UnexpectedNullError: There are nulls, and ``fill`` is None.
        WrongLengthError: A list has another length.
        BadValueError: The numbers' type does not hold one of the values.
    """
    count = len(array)
    if not lengths:
        return leaf.numbers(array, fill), validity(array) if masked else None
    present = None
    if array.null_count:
        if fill is None:
            raise UnexpectedNullError
        present = validity(array)
    offsets, child = lists(array)
    sizes = np.diff(offsets) if present is None else np.diff(offsets)[present]
    wrong = sizes[sizes != lengths[0]]
    if len(wrong):
        raise WrongLengthError(int(wrong[0]), lengths[0])
    values, valid = dense(child, lengths[1:], leaf, fill, masked=masked)
    kept = count if present is None else int(present.sum())
    values = values.reshape(kept, *lengths)
    valid = valid.reshape(kept, *lengths) if valid is not None else None
    if present is not None:
        values = _spread(values, present, fill or 0)
        valid = _spread(valid, present, 0) if valid is not None else None
    return values, valid


def _spread(values: Array, present: npt.NDArray[np.bool_], fill: float) -> Array:
    """Puts the rows of ``values`` where ``present`` is true, and ``fill`` elsewhere."""
    result = np.full((len(present), *values.shape[1:]), fill, dtype=values.dtype)
    result[present] = values
    return result

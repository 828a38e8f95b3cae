"""Compares the types of a table with those of its files, which may be older and narrower."""

from __future__ import annotations

import pyarrow as pa

from sparkdl_runner.tensors.arrays import is_list

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""For bits of a whole number, the digits of the longest."""


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that the values of an extension are stored as, such as 16 bytes for a UUID."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def is_same_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of both become the same in a batch, however Arrow stores them."""
    if is_list(found) and is_list(wanted):
        return is_same_kind(found.value_type, wanted.value_type)
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        same = is_same_kind(found.key_type, wanted.key_type)
        return same and is_same_kind(found.item_type, wanted.item_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        mine = {found.field(index).name: found.field(index).type for index in range(len(found))}
        theirs = {
            wanted.field(index).name: wanted.field(index).type for index in range(len(wanted))
        }
        same = mine.keys() == theirs.keys()
        return same and all(is_same_kind(mine[name], theirs[name]) for name in mine)
    return found.equals(wanted) or _text_or_time(found) == _text_or_time(wanted) is not None


def _text_or_time(dtype: pa.DataType) -> str | None:
    types = pa.types
    if types.is_dictionary(dtype):
        dtype = dtype.value_type
    if types.is_string(dtype) or types.is_large_string(dtype):
        return "text"
    if types.is_binary(dtype) or types.is_large_binary(dtype):
        return "binary"
    if types.is_timestamp(dtype):
        return "timestamp" if dtype.tz is None else "timestamp in UTC"
    return None


def can_become(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of a file may be cast to the table's type and lose nothing.

    That is what the formats let a table's column grow into.
    """
    types = pa.types
    if is_same_kind(found, wanted):
        return True
    if is_list(found) and is_list(wanted):
        return can_become(found.value_type, wanted.value_type)
    if types.is_signed_integer(found):
        wide = types.is_signed_integer(wanted) and wanted.bit_width >= found.bit_width
        if types.is_decimal(wanted):
            return bool(wanted.precision - wanted.scale >= _DIGITS[found.bit_width])
        return bool(wide or (types.is_float64(wanted) and found.bit_width <= 32))
    if types.is_float32(found):
        return bool(types.is_float64(wanted))
    if types.is_decimal(found) and types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale >= found.precision - found.scale
        return bool(whole and wanted.scale >= found.scale)
    if types.is_timestamp(found) and found.tz is None and types.is_timestamp(wanted):
        return True  # Spark's usual 96 bits do not say that they are in UTC, as they are.
    return bool(types.is_date(found) and types.is_timestamp(wanted) and wanted.tz is None)

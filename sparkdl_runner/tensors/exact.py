"""Casts that lose nothing: a value that the new type does not hold is named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .errors import BadValueError

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MOST = 2**63 - 1


def cast_exactly(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """The array as another type.

    Raises:
        BadValueError: The type does not hold one of the values; it names the first of them.
    """
    try:
        return array.cast(arrow_type)
    except pa.ArrowInvalid as error:
        raise BadValueError(*_lost(array, arrow_type, str(error))) from error


def _lost(array: pa.Array, arrow_type: pa.DataType, reason: str) -> tuple[str, str]:
    """What is wrong with the first value that is lost, and what to do about it."""
    array = array.drop_null()
    if pa.types.is_uint64(array.type):
        large = np.frombuffer(array.buffers()[1], np.uint64)[array.offset :][: len(array)]
        return (
            f"holds {large[large > _MOST][0]}, and a tensor's whole numbers end at 2^63 - 1",
            "Write the column as text, decimals or doubles, or leave it out with columns=[…].",
        )
    unit = getattr(array.type, "unit", None)
    if unit is None:
        return f"holds a value that is lost ({reason})", "Leave the column out with columns=[…]."
    whole = array.view(pa.int64())
    values = np.frombuffer(whole.buffers()[1], np.int64)[whole.offset :][: len(whole)]
    if unit == "ns":
        value = values[values % 1000 != 0][0]
        return (
            f"holds {_shown(value, array.type)}, and batches have whole microseconds",
            "Round the column to microseconds before, or leave it out with columns=[…].",
        )
    most = _MOST // (10**6 // _PER_SECOND[unit])
    value = values[(values > most) | (values < -most)][0]
    return (
        f"holds {_shown(value, array.type)}, which is no number of microseconds of 64 bits",
        "Correct it where the column is written, or leave the column out with columns=[…].",
    )


def _shown(value: np.int64, arrow_type: pa.DataType) -> str:
    if pa.types.is_timestamp(arrow_type):
        unit = arrow_type.unit
        return f"{np.datetime64(int(value), unit)} ({int(value)} {unit} since 1970)"
    return f"{int(value)} {arrow_type.unit}"

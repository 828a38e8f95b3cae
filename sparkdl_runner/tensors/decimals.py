"""Decimals as float64: the nearest one to each, as ``float(str(decimal))``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_MOST_EXACT = 1 << 53
"""Whole numbers up to this one are exact in float64."""
_MOST_EXACT_POWER = 22
"""Powers of ten up to this one are exact in float64."""


def floats_of(array: pa.Array) -> pa.Array:
    """Decimals ``[n]`` as float64 ``[n]``, nulls as nulls.

    Arrow's own cast rounds twice, and is off by one unit in the last place for every eighth price.
    The quotient of two exact numbers is rounded once. What has more digits goes through text.
    Neither imports pandas, as ``Array.to_numpy`` does.
    """
    count, scale = len(array), array.type.scale
    if count == 0:
        return array.cast(pa.float64())
    if array.type.bit_width < 128:
        array = array.cast(pa.decimal128(array.type.precision, scale))
    width = array.type.bit_width // 64
    start = array.offset * width * 8
    words = np.frombuffer(array.buffers()[1], "<i8", count * width, start).reshape(count, width)
    low = words[:, 0]
    is_exact = (low <= _MOST_EXACT) & (low >= -_MOST_EXACT)
    is_exact &= (words[:, 1:] == (low >> 63)[:, None]).all(axis=1)  # The sign, in all that is left.
    if abs(scale) > _MOST_EXACT_POWER:
        is_exact[:] = False
    power = float(10 ** min(abs(scale), _MOST_EXACT_POWER))
    numbers = low / power if scale >= 0 else low * power
    valid = None
    if array.null_count:
        flags = array.is_valid().cast(pa.uint8()).buffers()[1]
        valid = _bits(np.frombuffer(flags, np.uint8, count))
    if not is_exact.all():
        rest = pa.Array.from_buffers(pa.bool_(), count, [None, _bits(~is_exact)])
        parsed = array.filter(rest).cast(pa.string()).cast(pa.float64()).fill_null(0)
        numbers[~is_exact] = np.frombuffer(parsed.buffers()[1], np.float64, len(parsed))
    return pa.Array.from_buffers(pa.float64(), count, [valid, pa.py_buffer(numbers)])


def _bits(flags: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))

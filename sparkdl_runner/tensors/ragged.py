"""Lists of numbers that differ in length: as rows of bytes, and cut or filled up to one length.

A loader keeps them as rows of bytes (``large_binary``) while it shuffles, since Arrow moves a row
of bytes by one copy, and a list value by value. Offsets have 64 bits, so no number of rows is too
large to be put together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .arrays import Array, Leaf, dense, lists


class Ragged(NamedTuple):
    """Numbers of rows that differ in length, one row after the other."""

    offsets: Array
    """int64 ``[rows + 1]``: row i has the numbers ``offsets[i]`` up to ``offsets[i + 1]``."""
    numbers: Array
    """``[total, *shape]``."""


def keep_numbers(
    array: pa.Array, inner_lengths: tuple[int, ...], leaf: Leaf, fill: float | None
) -> pa.Array:
    """Lists ``[n]`` as rows of the bytes of their numbers; a null list has none.

    Args:
        array: Lists of numbers, or of lists of fixed lengths.
        inner_lengths: These lengths, from the outside in.
        leaf: How the innermost values become numbers.
        fill: What a null number becomes; None if there are none.
    """
    offsets, child = lists(array)
    numbers, _ = dense(child, inner_lengths, leaf, fill)
    size = leaf.dtype.itemsize * int(np.prod(inner_lengths, dtype=np.int64))
    if size == 0:  # The lists inside are empty, and a byte stands for each.
        size, numbers = 1, np.zeros(len(child), dtype=np.uint8)
    buffers = [None, pa.py_buffer(offsets * size), pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(pa.large_binary(), len(array), buffers)


def ragged(rows: pa.Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Ragged:
    """The numbers of kept rows ``[n]``, each of ``shape``, as they lie in Arrow's memory."""
    offsets, content = bytes_of(rows)
    if 0 in shape:
        return Ragged(offsets, np.empty((len(content), *shape), dtype=dtype))
    numbers = np.frombuffer(content, dtype=np.uint8).view(dtype).reshape(-1, *shape)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return Ragged(offsets // size, numbers)


def padded(
    rows: pa.Array,
    length: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    pad_value: float,
) -> tuple[Array, Array]:
    """Kept rows ``[n]``, each cut or filled up to ``length`` numbers of ``shape``.

    Returns:
        ``[n, length, *shape]`` numbers, and int64 ``[n]``: how many of each are real.
    """
    offsets, numbers = ragged(rows, shape, dtype)
    lengths = np.diff(offsets)
    sizes = np.minimum(lengths, length)
    if lengths.max(initial=0) > length:
        place = np.arange(len(numbers)) - np.repeat(offsets[:-1], lengths)
        numbers = numbers[place < length]
    result = np.full((len(rows), length, *shape), pad_value, dtype=dtype)
    result[np.arange(length) < sizes[:, None]] = numbers
    return result, sizes


def bytes_of(rows: pa.Array) -> tuple[Array, memoryview]:
    """int64 ``[n + 1]`` offsets from 0, and the bytes that they point into."""
    if not len(rows):
        return np.zeros(1, dtype=np.int64), memoryview(b"")
    _, bounds, content = rows.buffers()
    offsets = np.frombuffer(bounds, np.int64, len(rows) + 1, rows.offset * 8)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, memoryview(content or b"")[first:last]

"""Rows that differ in length: how they are kept while they are shuffled, and what they become.

Lists of numbers are kept as rows of bytes (``large_binary``), since Arrow moves a row of bytes by
one copy, and a list value by value. Offsets have 64 bits, so no number of rows is too large to be
put together.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl_runner.data.decode.arrays import Array, Leaf, as_numpy, dense, lists, validity
from sparkdl_runner.data.errors import BadRowError

NO_UTF8_REMEDY = (
    "Spark does not check what it is told is text. Decode it there, as by "
    "F.decode(F.col(…).cast('binary'), 'ISO-8859-1'), or cast the column to binary to have its "
    "bytes, and convert again; or leave the column out with columns=[…]."
)


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


def keep_validity(array: pa.Array) -> pa.Array:
    """Rows ``[n]`` of which only matters whether they are null, as one byte each."""
    offsets = np.arange(len(array) + 1, dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(validity(array))]
    return pa.Array.from_buffers(pa.large_binary(), len(array), buffers)


def kept_validity(rows: pa.Array) -> Array:
    """Bool ``[n]``: which of the rows were not null, those that only fill up left out."""
    offsets, content = bytes_of(rows)
    result = np.zeros(len(rows), dtype=np.bool_)
    result[np.diff(offsets) > 0] = np.frombuffer(content, dtype=np.bool_)
    return result


def keep_words(array: pa.Array) -> pa.Array:
    """Texts or bytes ``[n]``, with 64-bit offsets.

    Raises:
        BadRowError: A text is no UTF-8.
    """
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    if is_text:
        check_utf8(array)
    kept = array.cast(pa.large_string() if is_text else pa.large_binary())
    # In a column of bytes of a fixed length, Arrow stores that many bytes for a null, too.
    is_fixed = pa.types.is_fixed_size_binary(array.type)
    return pc.fill_null(kept, b"") if is_fixed and kept.null_count else kept


def check_utf8(array: pa.Array) -> None:
    """Refuses texts, or lists of them, that are no UTF-8.

    Raises:
        BadRowError: It names the first of them.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for row, value in enumerate(array):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                problem = (
                    f"holds text that is no UTF-8 (byte 0x{error.object[error.start]:02x} at "
                    f"position {error.start})"
                )
                raise BadRowError(row, problem, NO_UTF8_REMEDY) from None
        raise


def take(rows: pa.Array, index: Array) -> pa.Array:
    """The rows ``[n]`` of these numbers (int64); null where a number is negative.

    Unlike ``pa.array(index)`` it does not import pandas, which takes a fifth of a second.
    """
    valid = None
    if index.min(initial=0) < 0:
        valid = pa.py_buffer(np.packbits(index >= 0, bitorder="little"))
    place = pa.py_buffer(np.ascontiguousarray(index))
    return rows.take(pa.Array.from_buffers(pa.int64(), len(index), [valid, place]))


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
    found = np.diff(offsets)
    sizes = np.minimum(found, length)
    if found.max(initial=0) > length:
        place = np.arange(len(numbers)) - np.repeat(offsets[:-1], found)
        numbers = numbers[place < length]
    result = np.full((len(rows), length, *shape), pad_value, dtype=dtype)
    result[np.arange(length) < sizes[:, None]] = numbers
    return result, sizes


def words(rows: pa.Array) -> list[Any]:
    """Kept texts or bytes ``[n]`` as Python's; nulls are empty."""
    offsets, content = bytes_of(rows)
    if not pa.types.is_large_string(rows.type):
        whole: bytes | str = bytes(content)
    else:
        whole = str(content, "utf-8")
        if len(whole) < len(content):
            sizes = as_numpy(pc.fill_null(pc.utf8_length(rows), 0))
            offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return [whole[begin:end] for begin, end in pairwise(offsets.tolist())]


def bytes_of(rows: pa.Array) -> tuple[Array, memoryview]:
    """int64 ``[n + 1]`` offsets from 0, and the bytes that they point into."""
    if not len(rows):
        return np.zeros(1, dtype=np.int64), memoryview(b"")
    _, bounds, content = rows.buffers()
    offsets = np.frombuffer(bounds, np.int64, len(rows) + 1, rows.offset * 8)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, memoryview(content or b"")[first:last]

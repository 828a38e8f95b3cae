"""Texts, bytes and nulls: how rows are kept while they are shuffled, and what they become."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl_runner.data.errors import BadRowError
from sparkdl_runner.tensors.arrays import Array, as_numpy, validity
from sparkdl_runner.tensors.ragged import bytes_of

NO_UTF8_REMEDY = (
    "Spark does not check what it is told is text. Decode it there, as by "
    "F.decode(F.col(…).cast('binary'), 'ISO-8859-1'), or cast the column to binary to have its "
    "bytes, and convert again; or leave the column out with columns=[…]."
)


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

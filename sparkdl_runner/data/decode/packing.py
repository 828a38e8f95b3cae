"""Puts the rows of a batch into sequences: several to one, or each in one of the longest's length.

A packed batch depends on its rows alone. So it is the same in each run and after each resume, and
all ranks take equal steps, whatever the lengths are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.decode.rows import take
from sparkdl_runner.tensors.arrays import Array
from sparkdl_runner.tensors.ragged import bytes_of, padded, ragged

PACKED_ENTRIES = ("", "_document_ids", "_positions", "_cu_seqlens")
"""The suffixes of the entries that ``pack`` makes of a column."""

LONGEST_ENTRIES = ("", "_length")
"""The suffixes of the entries that ``pad_to_longest`` makes of a column."""


def pack(rows: pa.Array, length: int, dtype: np.dtype[Any], pad_value: float) -> dict[str, Array]:
    """Packs kept rows ``[n]``, the documents, into sequences of ``length`` numbers.

    A document that is longer is cut into pieces of ``length``. No other is cut, and none is left
    out. There are as many sequences as it takes, one at least.

    Returns:
        As ``PACKED_ENTRIES`` calls them: numbers ``[sequences, length]``; int32 ``[sequences,
        length]``, the number of each number's document in the batch, from 1, and 0 where nothing
        is; int32 ``[sequences, length]``, the place of each in its piece, from 0; int32
        ``[pieces + 1]``, where in the flattened sequences each piece begins. What is empty at the
        end of a sequence is a piece there.
    """
    pieces, document = _pieces(rows, length * dtype.itemsize)
    sizes = np.diff(bytes_of(pieces)[0]) // dtype.itemsize
    sequence = best_fit(sizes, length)
    order = np.argsort(sequence, kind="stable")
    sequence, sizes = sequence[order], sizes[order]
    count = int(sequence.max(initial=0)) + 1
    used = np.bincount(sequence, weights=sizes, minlength=count).astype(np.int64)
    # After a sequence's pieces comes a piece for its empty end, perhaps of no length.
    ends = np.searchsorted(sequence, np.arange(count), side="right")
    spans = np.insert(sizes, ends, length - used)
    owners = np.insert(document[order] + 1, ends, 0)
    begins = np.cumsum(spans) - spans
    positions = np.arange(count * length, dtype=np.int32)
    positions -= np.repeat(begins.astype(np.int32), spans)
    numbers = ragged(take(pieces, order), (), dtype).numbers
    sequences = np.empty((count, length), dtype=dtype)
    taken = 0
    for number, size in enumerate(used.tolist()):
        sequences[number, :size] = numbers[taken : taken + size]
        sequences[number, size:] = pad_value
        positions[number * length + size : (number + 1) * length] = 0
        taken += size
    return {
        "": sequences,
        "_document_ids": np.repeat(owners.astype(np.int32), spans).reshape(count, length),
        "_positions": positions.reshape(count, length),
        "_cu_seqlens": np.append(begins[spans > 0], count * length).astype(np.int32),
    }


def best_fit(sizes: Array, length: int) -> Array:
    """Best fit, the longest first: int64 ``[n]``, the sequence of each piece, from 0.

    Each piece goes to the sequence that it leaves the least space in, or else to a new one: at most
    11/9 of the fewest possible, and one more (Johnson, 1973).

    Args:
        sizes: int64 ``[n]``, each from 1 to ``length``.
        length: What a sequence holds.
    """
    result = np.zeros(len(sizes), dtype=np.int64)
    free: list[tuple[int, int]] = []  # space and number of each sequence that has some
    sequences = 0
    order = np.argsort(-sizes, kind="stable")
    for piece, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        place = bisect_left(free, (size, 0))
        if place == len(free):
            space, sequence = length, sequences
            sequences += 1
        else:
            space, sequence = free.pop(place)
        result[piece] = sequence
        if space > size:
            insort(free, (space - size, sequence))
    return result


def pad_to_longest(
    rows: pa.Array, multiple: int, dtype: np.dtype[Any], pad_value: float
) -> dict[str, Array]:
    """Kept rows ``[n]``, filled up to the length of the longest, rounded up to a multiple.

    Returns:
        As ``LONGEST_ENTRIES`` calls them: numbers ``[n, length]``, and int64 ``[n]``: how many of
        each are real.
    """
    longest = int(np.diff(bytes_of(rows)[0]).max(initial=0)) // dtype.itemsize
    length = max(1, -(-longest // multiple)) * multiple
    values, sizes = padded(rows, length, (), dtype, pad_value)
    return {"": values, "_length": sizes}


def _pieces(rows: pa.Array, most_bytes: int) -> tuple[pa.Array, Array]:
    """Cuts kept rows, without a copy: the pieces ``[m]``, and int64 ``[m]``, the row of each."""
    offsets, content = bytes_of(rows)
    counts = -(-np.diff(offsets) // most_bytes)
    document = np.repeat(np.arange(len(rows)), counts)
    within = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.append(offsets[document] + within * most_bytes, offsets[-1])
    buffers = [None, pa.py_buffer(begins), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_binary(), len(document), buffers), document

"""Columns whose batches have shapes of their own: packed, or filled up to their longest row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from sparkdl_runner.data.decode import packing
from sparkdl_runner.data.decode.columns import CollatedColumn
from sparkdl_runner.tensors.arrays import Leaf


def collated_column(
    name: str,
    leaf: Leaf,
    keep: Callable[[pa.Array], pa.Array],
    *,
    has_nulls: bool,
    row_bytes: int,
    pack: int | None,
    pad_multiple: int,
    pad_value: float,
) -> CollatedColumn:
    """Plans such a column.

    Args:
        name: Of the column.
        leaf: How its values become numbers.
        keep: Its rows as they are shuffled.
        has_nulls: See ``VariableColumn``.
        row_bytes: See ``VariableColumn``.
        pack: The length of a sequence; None to fill each row up to the longest of its batch.
        pad_multiple: What that is rounded up to a multiple of.
        pad_value: What to fill with.
    """
    if pack is not None:
        collate = partial(packing.pack, length=pack, dtype=leaf.dtype, pad_value=pad_value)
    else:
        collate = partial(
            packing.pad_to_longest, multiple=pad_multiple, dtype=leaf.dtype, pad_value=pad_value
        )
    return CollatedColumn(
        name=name,
        kind="ragged",
        decode=keep,
        kept_type=pa.large_binary(),
        leaf=leaf,
        has_nulls=has_nulls,
        row_bytes=row_bytes,
        collate=collate,
        endings=packing.LONGEST_ENTRIES if pack is None else packing.PACKED_ENTRIES,
    )

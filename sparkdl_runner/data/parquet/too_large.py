"""Rows that Arrow cannot decode: it joins the texts in lists, and counts their bytes in 31 bits."""

from __future__ import annotations

import pyarrow as pa

from sparkdl_runner.data.parquet.sizes import leaf_widths
from sparkdl_runner.tensors.arrays import is_list

MOST_BYTES = 2**31 - 1
TOO_LARGE = (
    f"the texts or bytes in the lists of one row take more than {MOST_BYTES:,} bytes, and Arrow "
    "decodes no more. Write shorter lists, in more rows, or leave the column out with columns=[…]."
)
_SAID = ("chunked array outputs", "offset overflow", "cannot contain more than")


def has_a_limit(arrow_type: pa.DataType) -> bool:
    """Whether these are lists of texts or bytes; others may be of any size."""
    return is_list(arrow_type) and None in leaf_widths(arrow_type)


def is_too_large(error: BaseException) -> bool:
    """Whether Arrow means that: it says it in words of its own."""
    return isinstance(error, pa.ArrowException) and any(said in str(error) for said in _SAID)

"""Bytes that values take once decoded, where those do not follow from the type of their column.

The footer of a Parquet file knows them for numbers in lists, and for texts and bytes that are not
dictionary-encoded. A dictionary makes them as large as it likes: see ``sample.py``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkdl_runner.tensors.arrays import as_numpy, is_list, leaf_of, lists

_TEXTS = {
    f"{size}{kind}{view}"
    for size in ("", "large_")
    for kind in ("string", "binary")
    for view in ("", "_view")
}
LENGTH_BYTES = 4
"""Before each text in a plain page."""
_SHORT_LENGTHS = "DELTA_LENGTH_BYTE_ARRAY"
_WHOLE = {"PLAIN", "RLE", "BIT_PACKED", _SHORT_LENGTHS}
"""Encodings that hold each text whole. Those of runs are for nulls and the lengths of lists."""


def is_variable(arrow_type: pa.DataType) -> bool:
    """Whether the decoded size of a row does not follow from the type alone."""
    if pa.types.is_dictionary(arrow_type):
        return is_variable(arrow_type.value_type)
    return _width(arrow_type) is None and _is_measured(arrow_type)


def _is_measured(arrow_type: pa.DataType) -> bool:
    """Whether ``row_sizes`` knows such values: numbers, texts, bytes, and lists and structs."""
    if pa.types.is_dictionary(arrow_type) or is_list(arrow_type):
        return _is_measured(arrow_type.value_type)
    if pa.types.is_struct(arrow_type):
        fields = range(arrow_type.num_fields)
        return all(_is_measured(arrow_type.field(index).type) for index in fields)
    return _width(arrow_type) is not None or str(arrow_type) in _TEXTS


def leaf_widths(arrow_type: pa.DataType) -> list[int | None]:
    """Bytes of a value, once decoded, for each leaf of a column; None for texts and bytes."""
    types = pa.types
    if types.is_dictionary(arrow_type) or is_list(arrow_type):
        inner = [arrow_type.value_type]
    elif types.is_struct(arrow_type):
        inner = [arrow_type.field(index).type for index in range(arrow_type.num_fields)]
    else:
        return [_width(arrow_type)]
    return [width for inner_type in inner for width in leaf_widths(inner_type)]


def _width(arrow_type: pa.DataType) -> int | None:
    if pa.types.is_dictionary(arrow_type):
        return None  # Arrow knows the width of its indices.
    try:
        width = -(-arrow_type.bit_width // 8)
    except ValueError:
        return None
    leaf = leaf_of(arrow_type, decimals="float64")
    return int(width if isinstance(leaf, str) else max(width, leaf.dtype.itemsize))


def bytes_in_chunk(chunk: pq.ColumnChunkMetaData, width: int | None) -> int | None:
    """Bytes of the values of one leaf in one row group; None if only its pages know them."""
    if width is not None:
        return int(chunk.num_values * width)
    if chunk.has_dictionary_page or not _WHOLE.issuperset(chunk.encodings):
        return None
    return plain_bytes(chunk)


def plain_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """Bytes that the values take at most, if they are not dictionary-encoded."""
    statistics = chunk.statistics
    known = statistics is not None and statistics.has_null_count
    known = known and _SHORT_LENGTHS not in chunk.encodings
    values = chunk.num_values - statistics.null_count if known else 0
    return max(0, int(chunk.total_uncompressed_size) - LENGTH_BYTES * max(0, values))


def row_sizes(array: pa.Array) -> npt.NDArray[np.int64]:
    """int64 ``[n]``: bytes of the values in each row, without offsets."""
    arrow_type = array.type
    if pa.types.is_dictionary(arrow_type):
        sizes = np.append(row_sizes(array.dictionary), 0)  # The last is for nulls.
        return sizes[as_numpy(pc.fill_null(array.indices.cast(pa.int64()), len(sizes) - 1))]
    if is_list(arrow_type):
        offsets, values = lists(array)
        width = _width(values.type)
        if width is not None:
            return np.diff(offsets) * width
        ends = np.concatenate([[0], np.cumsum(row_sizes(values))])
        return np.diff(ends[offsets])
    if pa.types.is_struct(arrow_type):
        sizes = np.zeros(len(array), np.int64)
        for field in array.flatten():
            sizes += row_sizes(field)
        return sizes
    width = _width(arrow_type)
    if width is not None:
        return np.full(len(array), width, np.int64)
    if str(arrow_type).endswith("_view"):
        array = array.cast(pa.large_binary())  # Arrow measures no views.
    return as_numpy(pc.fill_null(pc.binary_length(array), 0)).astype(np.int64)

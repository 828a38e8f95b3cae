"""Reads a sample of texts and bytes, for their decoded size, where dictionaries hide it.

They are read as indices into a dictionary: its values are looked at once, however often they occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.base.foreign_file import open_input
from sparkdl_runner.data.parquet.arrow_schema import metadata_of
from sparkdl_runner.data.parquet.leaves import owners_of
from sparkdl_runner.data.parquet.pages import HEADER_BYTES, Page, page_of
from sparkdl_runner.data.parquet.sizes import LENGTH_BYTES, plain_bytes, row_sizes

_SAMPLE_BYTES = 1 << 20
"""Of a column in a row group, compressed: all of a small one."""
_BATCH_BYTES = 8 << 20
_MOST_BATCH_ROWS = 65_536
_PROBE_ROWS = 16
_MOST_PAGE_BYTES = 64 << 20
"""A chunk with a larger dictionary is not sampled: Arrow would decode all of it."""


class Sizes(NamedTuple):
    """Bytes of the decoded values of some rows of a column."""

    total: int
    most: int | None
    """Of the largest row; None if only some rows were seen."""


def sample(
    filesystem: pa.fs.FileSystem, path: str, index: int, names: Sequence[str]
) -> dict[str, Sizes]:
    """The sizes of columns in one row group of a file, as far as they can be read."""
    sizes = {}
    with open_input(filesystem, path) as stream:
        footer = pq.ParquetFile(stream, metadata=metadata_of(stream))
        group = footer.metadata.row_group(index)
        chunks_of: dict[str, list[pq.ColumnChunkMetaData]] = {name: [] for name in names}
        for leaf, name in enumerate(owners_of(footer)):
            if name in chunks_of:
                chunks_of[name].append(group.column(leaf))
        for name, chunks in chunks_of.items():
            with suppress(pa.ArrowException, OSError):
                pages = [_first_page(stream, chunk) for chunk in chunks]
                if all(page.size_bytes <= _MOST_PAGE_BYTES for page in pages):
                    sizes[name] = _sample_column(stream, footer.metadata, index, name, chunks)
                else:
                    sizes[name] = _guess(chunks, pages)
    return sizes


def _sample_column(
    stream: pa.NativeFile,
    metadata: pq.FileMetaData,
    index: int,
    name: str,
    chunks: Sequence[pq.ColumnChunkMetaData],
) -> Sizes:
    """By the first rows of a row group, the sizes of one column in all of it."""
    with_dictionary = [chunk.path_in_schema for chunk in chunks if _has_dictionary(chunk)]
    parquet = pq.ParquetFile(
        stream, metadata=metadata, read_dictionary=with_dictionary, pre_buffer=False
    )

    def batches(rows: int) -> Iterator[npt.NDArray[np.int64]]:
        for batch in parquet.iter_batches(rows, [index], [name], use_threads=False):
            yield row_sizes(batch.column(0))

    all_rows = metadata.row_group(index).num_rows
    # As indices into a dictionary, rows take what they take in the file.
    row_bytes = sum(chunk.total_uncompressed_size for chunk in chunks) / all_rows + LENGTH_BYTES
    if not with_dictionary:
        few = max(1, min(_PROBE_ROWS, int(_BATCH_BYTES / row_bytes)))
        row_bytes = max(row_bytes, next(batches(few), np.zeros(1)).mean())
    rows = max(1, min(_MOST_BATCH_ROWS, int(_BATCH_BYTES / row_bytes)))
    compressed = sum(chunk.total_compressed_size for chunk in chunks)
    enough = max(_PROBE_ROWS, all_rows * min(1, _SAMPLE_BYTES / max(1, compressed)))
    done, total, most = 0, 0, 0
    for sizes in batches(min(rows, int(enough))):
        done, total, most = done + len(sizes), total + int(sizes.sum()), max(most, int(sizes.max()))
        if done >= enough:
            break
    if done == all_rows:
        return Sizes(total, most)
    # Later rows may have had no place in the dictionary.
    plain = sum(plain_bytes(chunk) for chunk in chunks)
    return Sizes(max(-(-total * all_rows // max(1, done)), plain), None)


def _has_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    return chunk.physical_type == "BYTE_ARRAY" and any(
        "DICT" in encoding for encoding in chunk.encodings
    )


def _guess(chunks: Sequence[pq.ColumnChunkMetaData], pages: Sequence[Page]) -> Sizes:
    """As if all values of a dictionary occurred equally often."""
    total = 0
    for chunk, page in zip(chunks, pages, strict=True):
        mean = page.size_bytes // max(1, page.value_count)
        total += max(chunk.num_values * mean, plain_bytes(chunk))
    return Sizes(total, None)


def _first_page(stream: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> Page:
    """The page of a chunk that Arrow decodes first: the dictionary, if there is one."""
    has_dictionary = chunk.has_dictionary_page and chunk.dictionary_page_offset
    start = chunk.dictionary_page_offset if has_dictionary else chunk.data_page_offset
    return page_of(stream.read_at(HEADER_BYTES, start))

"""Reads columns of a Parquet file in batches of so many bytes, however long their values are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.base.foreign_file import open_input
from sparkdl_runner.base.retrying import reason_of
from sparkdl_runner.data.errors import DatasetError, StorageError
from sparkdl_runner.data.parquet.arrow_schema import metadata_of
from sparkdl_runner.data.parquet.too_large import TOO_LARGE, is_too_large

BATCH_BYTES = 8 << 20
"""About as much as a batch takes; one row may take more."""

_MOST_ROWS = 65_536
_PROBE_ROWS = 16
_READ_BYTES = 1 << 20


_DAMAGED = (
    "Write the file again, or restore it; if no training needs that column, leave it out with "
    "columns=[…] in make_spark_converter."
)
_NULL_LISTS = (
    "Arrow reads no nulls among lists of a fixed size: write the column as a list without one, or "
    "leave it out with columns=[…] in make_spark_converter."
)


def scan(filesystem: pa.fs.FileSystem, path: str, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields all rows of some columns of a file, in batches of about ``BATCH_BYTES``.

    Raises:
        StorageError: The storage does not give it, for a reason of its own.
        DatasetError: Pages cannot be read; it names file, row group and column.
    """
    with open_input(filesystem, path) as stream:
        # Else Arrow reads a row group's whole column before its first value.
        parquet = pq.ParquetFile(
            stream,
            metadata=metadata_of(stream),
            coerce_int96_timestamp_unit="us",
            buffer_size=_READ_BYTES,
            pre_buffer=False,
        )
        for group in range(parquet.num_row_groups):
            try:
                yield from _batches(parquet, group, names)
            except (pa.ArrowException, OSError) as error:
                raise explained(error, path, parquet, group, names) from error


def explained(
    error: pa.ArrowException | OSError,
    path: str,
    parquet: pq.ParquetFile,
    group: int,
    names: Sequence[str],
) -> DatasetError:
    """What reading columns of a row group raised, in a sentence that names the first of them."""
    place = f"{path}, row group {group}"
    reason = reason_of(error, _DAMAGED)
    if reason is not None:
        return StorageError(f"{place}, cannot be read: {reason}")
    column = _broken_column(parquet, group, names)
    if is_too_large(error):
        return DatasetError(f"{place}, column {column!r}: {TOO_LARGE}")
    what = " ".join(str(error).split()).rstrip(".")
    advice = _NULL_LISTS if "all lists to be of size" in what else _DAMAGED
    return DatasetError(f"{place}, column {column!r} cannot be read: {what}. {advice}")


def _batches(parquet: pq.ParquetFile, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    yield from parquet.iter_batches(
        batch_size=rows_of_batch(parquet, group, names),
        row_groups=[group],
        columns=list(names),
        use_threads=False,
    )


def _broken_column(parquet: pq.ParquetFile, group: int, names: Sequence[str]) -> str:
    """The first of several columns that cannot be read."""
    for name in names[:-1]:
        try:
            for _ in _batches(parquet, group, [name]):
                pass
        except (pa.ArrowException, OSError):
            return name
    return names[-1]


def rows_of_batch(parquet: pq.ParquetFile, group: int, names: Sequence[str]) -> int:
    """How many rows take ``BATCH_BYTES``, by the first few.

    The footer has the size of dictionary-encoded values only, which may be far less.
    """
    metadata = parquet.metadata.row_group(group)
    whole = sum(
        metadata.column(leaf).total_uncompressed_size
        for leaf in range(metadata.num_columns)
        if metadata.column(leaf).path_in_schema.startswith(tuple(names))
    )
    row_bytes = max(whole / max(1, metadata.num_rows), 1)
    probe = parquet.iter_batches(
        batch_size=max(1, min(_PROBE_ROWS, int(BATCH_BYTES / row_bytes))),
        row_groups=[group],
        columns=list(names),
        use_threads=False,
    )
    seen = [batch.nbytes / batch.num_rows for batch in islice(probe, 1)]
    return max(1, min(_MOST_ROWS, int(BATCH_BYTES / max([row_bytes, *seen]))))

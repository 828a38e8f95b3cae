"""Reads the rows and columns of a table from files that differ from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.data.dataset.view.rows import BoolArray, LiveRows


@dataclass(frozen=True, kw_only=True)
class Projection:
    """How the columns of some files become those of the table."""

    names: Mapping[str, str]
    """For each column of the table, its name in the files."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """For each column that the files lack, its value in every row: the partition's, or None."""

    def without(self, left_out: Collection[str]) -> Projection:
        """The same without some columns of the table."""
        return Projection(
            names={name: stored for name, stored in self.names.items() if name not in left_out},
            constants={
                name: constant for name, constant in self.constants.items() if name not in left_out
            },
        )

    def batches(
        self,
        parquet: pq.ParquetFile,
        index: int,
        schema: pa.Schema,
        *,
        rows: int,
        keep: BoolArray | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Reads one row group.

        Args:
            parquet: The file.
            index: The row group's number in it.
            schema: The columns to read, as they are in the table.
            rows: Rows that are read at a time.
            keep: Bool ``[rows in the file]``, which of them count.

        Yields:
            Batches in ``schema``, of the rows that count; none is empty.
        """
        there = [name for name in schema.names if name in self.names]
        done = 0
        for read in _read(parquet, index, [self.names[name] for name in there], rows):
            length = read if isinstance(read, int) else read.num_rows
            arrays = [
                _cast(read.column(self.names[column.name]), column.type)
                if column.name in self.names
                else _constant(self.constants.get(column.name), column.type, length)
                for column in schema
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            if keep is not None:
                part = keep[done : done + length]
                batch = batch if part.all() else batch.filter(pa.array(part))
            done += length
            if batch.num_rows:
                yield batch


def _read(parquet: pq.ParquetFile, index: int, names: Sequence[str], rows: int) -> Iterator[Any]:
    """Batches of columns of a row group, or their lengths if no column is wanted."""
    if names:
        yield from parquet.iter_batches(
            batch_size=rows, row_groups=[index], columns=list(names), use_threads=False
        )
        return
    total = parquet.metadata.row_group(index).num_rows
    for start in range(0, total, rows):
        yield min(rows, total - start)


def _constant(value: Any, wanted: pa.DataType, length: int) -> pa.Array:
    if value is None:
        return pa.nulls(length, wanted)
    return pa.repeat(pa.scalar(value, wanted), length)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray) and not array.type.equals(wanted):
        array = array.storage  # Newer Arrow has types of its own for UUIDs and JSON.
    if array.type.equals(wanted):
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_dictionary(wanted):
        array = array.dictionary_encode()  # Old Arrow has no cast to it.
    return array if array.type.equals(wanted) else array.cast(wanted)


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """The part of the files of a manifest that is the data set."""

    title: str
    """A description for people: ``version 3 of the Delta table file:///…``."""
    advice: str
    """Advice for a file of the data set that is gone or changed."""
    filters: str
    """The filters, in words; ``""`` for none."""
    projections: Sequence[Projection]
    projection_of: npt.NDArray[np.int32]
    """``[files]``, which of the projections is the file's."""
    live: LiveRows
    """Row groups are numbered as in the manifest."""

    def rows_in_file(self, group: int, live_rows: int) -> int:
        """Rows that a row group has in its file, where so many of them count."""
        return self.live.rows.get(group, live_rows)

    def names_in_file(self, file: int, names: Sequence[str]) -> tuple[str, ...]:
        """The names of these columns in the file of this number, as far as it has them."""
        called = self.projections[int(self.projection_of[file])].names
        return tuple(called[name] for name in names if name in called)

    def batches(
        self,
        parquet: pq.ParquetFile,
        place: tuple[int, int, int],
        schema: pa.Schema,
        rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Reads a row group; see ``Projection.batches``.

        Args:
            parquet: The file.
            place: Numbers of the file, of the row group, and of the row group within the file.
            schema: The columns to read.
            rows: Rows that are read at a time.
        """
        file, group, index = place
        projection = self.projections[int(self.projection_of[file])]
        keep = self.live.of_group(group)
        return projection.batches(parquet, index, schema, rows=rows, keep=keep)

    @property
    def digest(self) -> str:
        """64 hex digits over all that decides the rows and their values."""
        # Without the title: a moved table, or a later version with the same files, is equal.
        parts = [
            self.filters,
            [
                [dict(projection.names), sorted(map(str, projection.constants.items()))]
                for projection in self.projections
            ],
            self.projection_of.tolist(),
            sorted((group, packed.hex()) for group, packed in self.live.bits.items()),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

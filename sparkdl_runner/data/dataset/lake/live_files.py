"""Looks at one file of a snapshot: which of its row groups count, and what is in them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.base.foreign_file import open_input
from sparkdl_runner.data.dataset.files import FileInfo
from sparkdl_runner.data.dataset.footers import open_footer, page_rows_of, settled_time
from sparkdl_runner.data.dataset.lake.snapshot import TableColumn, TableFile
from sparkdl_runner.data.dataset.lake.types import can_become, stored_type
from sparkdl_runner.data.dataset.observe import Observation, hint_of
from sparkdl_runner.data.dataset.view.bounds import Bounds, bounds_of, of_constant
from sparkdl_runner.data.dataset.view.filters import RowFilter
from sparkdl_runner.data.dataset.view.rows import BoolArray
from sparkdl_runner.data.dataset.view.view import Projection
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.parquet.leaves import Columns
from sparkdl_runner.data.parquet.row_groups import decoded_bytes_of
from sparkdl_runner.data.parquet.scan import explained, rows_of_batch
from sparkdl_runner.data.parquet.sizes import is_variable
from sparkdl_runner.tensors.arrays import is_readable

_BATCH_ROWS = 8192
_READ_BYTES = 1 << 20
_FIELD_ID = b"PARQUET:field_id"


@dataclass(kw_only=True, eq=False)
class LiveGroup:
    """A row group that has rows that count."""

    index: int
    rows: int
    keep: BoolArray | None
    """``[rows]``, which of them count; None for all."""
    live_rows: int
    nulls: Mapping[str, int]
    """The nulls of each flat column; 0 if the footer does not say: then they are counted."""
    column_bytes: Mapping[str, int]
    """Encoded, as much as the rows that count take."""
    decoded_bytes: Mapping[str, int | None]
    """Of all its rows, see ``Footer.decoded_bytes``."""
    single: Mapping[str, Any]
    """The only value of each column that has one value in the row group."""
    unknown: Sequence[str]
    """Columns that must be read, for their nulls or the lengths of their lists."""


@dataclass(kw_only=True, eq=False)
class LiveFile:
    """The description of one file of the snapshot, for the manifest."""

    file: FileInfo
    projection: Projection
    types: Mapping[str, pa.DataType]
    """The type in the file of each column of the table that the file has."""
    groups: list[LiveGroup]
    page_rows: int
    left_out: Mapping[str, str]
    """Why columns of the table cannot be read in this file."""
    seen: dict[str, Observation] = field(default_factory=dict)
    """Observations of columns whose footers say too little."""


def read_live_file(
    filesystem: pa.fs.FileSystem,
    directory: str,
    file: TableFile,
    chosen: Sequence[TableColumn],
    columns: Sequence[TableColumn],
    row_filter: RowFilter | None,
    may_leave_out: bool,
) -> LiveFile | None:
    """Reads a file's footer, and of its rows no more than the footer leaves open.

    Args:
        filesystem: Where the file is.
        directory: The table's folder.
        file: The file.
        chosen: The columns to describe.
        columns: All of the table's.
        row_filter: Which rows count.
        may_leave_out: Whether to go on without columns that cannot be read.

    Returns:
        None if its partition, or what the table says of it, tells already that no row counts.

    Raises:
        DatasetError: It is no Parquet file, or holds other columns than the table.
    """
    if row_filter is not None:
        known = {
            name: Bounds(low=low, high=high, rows=1) for name, (low, high) in file.bounds.items()
        }
        known |= {name: of_constant(value, 1) for name, value in file.partition.items()}
        if row_filter.decide(known) is False:
            return None
    path = f"{directory}/{file.path}"
    info, footer, tail = open_footer(filesystem, directory, file.path)
    arrow = footer.schema_arrow.remove_metadata()
    filtered = () if row_filter is None else row_filter.schema.names
    used = [column for column in columns if column in chosen or column.name in filtered]
    projection = _project(footer.schema_arrow, file, used)
    types = {name: stored_type(arrow.field(there).type) for name, there in projection.names.items()}
    left_out = {
        column.name: f"column {column.name!r} is {types[column.name]} in {path} and {column.type} "
        "in the table, which the one does not become here"
        for column in used
        if column.name in types and not can_become(types[column.name], column.type)
    }
    for name in left_out:
        if name in filtered or not may_leave_out:
            raise DatasetError(f"{left_out[name]}: convert a DataFrame of the table.")
    chosen = [column for column in chosen if column.name not in left_out]
    projection = projection.without(left_out)
    with open_input(filesystem, path) as stream:
        parquet = pq.ParquetFile(
            stream,
            metadata=footer.metadata,
            coerce_int96_timestamp_unit="us",
            buffer_size=_READ_BYTES,
            pre_buffer=False,  # Newer Arrow would read the whole row group before a value.
        )
        groups = list(_groups(parquet, file, projection, chosen, row_filter, types))
        live = LiveFile(
            file=FileInfo(
                path=file.path,
                size_bytes=info.size,
                rows=sum(group.live_rows for group in groups),
                footer_crc32=zlib.crc32(tail),
                modified_ns=settled_time(info),
            ),
            projection=projection,
            types=types,
            groups=groups,
            page_rows=page_rows_of(footer.metadata),
            left_out=left_out,
        )
        _observe(parquet, path, live)
    return live


def _project(arrow: pa.Schema, file: TableFile, columns: Sequence[TableColumn]) -> Projection:
    """Finds a table's columns in a file: by number where both have them, else by name."""
    numbers = {
        int(column.metadata[_FIELD_ID]): column.name
        for column in arrow
        if column.metadata and _FIELD_ID in column.metadata
    }
    names: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for column in columns:
        if column.field_id is not None and numbers:
            there = numbers.get(column.field_id)
        elif column.file_names:
            there = next((name for name in column.file_names if name in arrow.names), None)
        else:
            raise DatasetError(
                f"{file.path} does not say which columns of the table it holds (it has no field "
                "ids, and the table no schema.name-mapping.default): convert a DataFrame of it."
            )
        if there is not None:
            names[column.name] = there
        else:
            constants[column.name] = file.partition.get(column.name, column.default)
    return Projection(names=names, constants=constants)


def _groups(
    parquet: pq.ParquetFile,
    file: TableFile,
    projection: Projection,
    chosen: Sequence[TableColumn],
    row_filter: RowFilter | None,
    types: Mapping[str, pa.DataType],
) -> Iterator[LiveGroup]:
    there = Columns.of(parquet)
    owners = there.owners
    first = 0
    for index in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(index)
        rows = group.num_rows
        if not rows:
            continue  # pandas writes such a row group for a frame without rows.
        bounds = bounds_of(group, owners, projection, types)
        decided = True if row_filter is None else row_filter.decide(bounds)
        keep = file.without_deleted(first, rows)
        first += rows
        if decided is None and row_filter is not None:
            passed = _passed(parquet, index, projection, row_filter)
            keep = passed if keep is None else keep & passed
        live = rows if keep is None else int(keep.sum())
        if decided is False or live == 0:
            continue
        chunks = [group.column(leaf) for leaf in range(len(owners))]
        sizes: dict[str, int] = {}
        for chunk, owner in zip(chunks, owners, strict=True):
            sizes[owner] = sizes.get(owner, 0) + chunk.total_uncompressed_size
        decoded = decoded_bytes_of(chunks, there)
        yield _described(index, rows, keep, live, bounds, chosen, projection, sizes, decoded, types)


def _described(
    index: int,
    rows: int,
    keep: BoolArray | None,
    live: int,
    bounds: Mapping[str, Bounds],
    chosen: Sequence[TableColumn],
    projection: Projection,
    sizes: Mapping[str, int],
    decoded: Mapping[str, int | None],
    types: Mapping[str, pa.DataType],
) -> LiveGroup:
    nulls: dict[str, int] = {}
    unknown, single = [], {}
    for column in chosen:
        known = bounds[column.name]
        nested = column.name in types and pa.types.is_nested(types[column.name])
        constant = column.name not in projection.names
        if hint_of(column.type) is None and not is_readable(column.type):
            nulls[column.name] = 0  # No loader reads it.
        elif constant and known.nulls:
            nulls[column.name] = live
        elif nested or known.nulls is None or (known.nulls and live < rows):
            nulls[column.name] = 0
            unknown.append(column.name)
        else:
            nulls[column.name] = known.nulls
        if known.low is not None and known.low == known.high and live > 1:
            single[column.name] = known.low
    return LiveGroup(
        index=index,
        rows=rows,
        keep=keep if live < rows else None,
        live_rows=live,
        nulls=nulls,
        column_bytes={
            column.name: sizes[projection.names[column.name]] * live // max(1, rows)
            if column.name in projection.names
            else live * _length(projection.constants[column.name])
            for column in chosen
        },
        decoded_bytes=_decoded_bytes(rows, chosen, projection, decoded),
        single=single,
        unknown=unknown,
    )


def _decoded_bytes(
    rows: int,
    chosen: Sequence[TableColumn],
    projection: Projection,
    decoded: Mapping[str, int | None],
) -> dict[str, int | None]:
    """By column of the table: of those in the file, and of those that are one value in all rows."""
    sizes: dict[str, int | None] = {}
    for column in chosen:
        there = projection.names.get(column.name)
        if there is not None and there in decoded:
            sizes[column.name] = decoded[there]
        elif there is None and is_variable(column.type):
            sizes[column.name] = rows * _length(projection.constants[column.name])
    return sizes


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes)) else 0  # Others say it by their type.


def _passed(
    parquet: pq.ParquetFile, index: int, projection: Projection, row_filter: RowFilter
) -> BoolArray:
    """Reads the columns that the filters name."""
    batches = projection.batches(parquet, index, row_filter.schema, rows=_BATCH_ROWS)
    return np.concatenate([row_filter.keep(batch) for batch in batches])


def _observe(parquet: pq.ParquetFile, path: str, live: LiveFile) -> None:
    """Reads the columns of which the footers say too little."""
    for group in live.groups:
        if not group.unknown:
            continue
        schema = pa.schema([(name, live.types[name]) for name in group.unknown])
        there = [live.projection.names[name] for name in group.unknown]
        try:
            rows = rows_of_batch(parquet, group.index, there)
            for batch in live.projection.batches(
                parquet, group.index, schema, rows=rows, keep=group.keep
            ):
                for name in group.unknown:
                    live.seen.setdefault(name, Observation()).see(batch.column(name))
        except (pa.ArrowException, OSError) as error:
            raise explained(error, path, parquet, group.index, there) from error

"""Makes the manifest of a snapshot from its files' footers, and drops row groups without rows."""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.fs

from sparkdl_runner.data.dataset.decoded_sizes import DecodedSizes, SizedFile
from sparkdl_runner.data.dataset.footers import in_threads
from sparkdl_runner.data.dataset.lake.live_files import LiveFile, read_live_file
from sparkdl_runner.data.dataset.lake.snapshot import Snapshot, TableColumn
from sparkdl_runner.data.dataset.lake.types import is_same_kind
from sparkdl_runner.data.dataset.manifest import ColumnInfo, Manifest
from sparkdl_runner.data.dataset.observe import Observation, depth_of, hint_of
from sparkdl_runner.data.dataset.row_groups import RowGroups
from sparkdl_runner.data.dataset.view.filters import Filters, RowFilter
from sparkdl_runner.data.dataset.view.rows import MOST_BYTES, LiveRows
from sparkdl_runner.data.dataset.view.view import View
from sparkdl_runner.data.errors import DatasetError

_log = logging.getLogger(__name__)

_THREADS = 16


def describe_snapshot(
    filesystem: pa.fs.FileSystem,
    directory: str,
    snapshot: Snapshot,
    *,
    columns: list[str] | None = None,
    filters: Filters | None = None,
) -> Manifest:
    """Describes the rows of a snapshot that fulfil the filters.

    Row groups are left out by their statistics. Where those cannot tell, the columns that the
    filters name are read, once, here: the manifest then says which rows count.

    Args:
        filesystem: Where the files are.
        directory: What their paths are relative to.
        snapshot: The files, and the table's columns.
        columns: The columns to keep, in this order; all by default.
        filters: See ``RowFilter``; they may name columns that are not kept.

    Returns:
        A manifest with a view; it is not written anywhere.

    Raises:
        ValueError: ``columns`` or ``filters`` do not fit the table.
        DatasetError: There is no such row, a file is not of the table, or the rows that count
            take too much to write down.
    """
    chosen = snapshot.select(columns)
    schema = pa.schema([(column.name, column.type) for column in snapshot.columns])
    row_filter = None if filters is None else RowFilter.of(filters, schema)
    wanted = in_threads(
        lambda file: read_live_file(
            filesystem, directory, file, chosen, snapshot.columns, row_filter, columns is None
        ),
        snapshot.files,
        _THREADS,
    )
    chosen = _readable(chosen, [file for file in wanted if file is not None], snapshot)
    files = [file for file in wanted if file is not None and file.groups]
    if not files and row_filter is not None:
        raise DatasetError(
            f"There is no row that fulfils filters={row_filter} in {snapshot.title}."
        )
    groups = [(number, group) for number, file in enumerate(files) for group in file.groups]
    live = LiveRows.of(
        {place: group.keep for place, (_, group) in enumerate(groups) if group.keep is not None}
    )
    if live.size_bytes > MOST_BYTES:
        raise DatasetError(
            f"Which rows of {snapshot.title} count takes {live.size_bytes:,} bytes to write down, "
            f"and at most {MOST_BYTES:,} are sent to every rank: filter by what the files are "
            "sorted or partitioned by, let the table's own maintenance write its files again "
            "without their deleted rows, or convert a DataFrame of these rows."
        )
    projections = list({repr(file.projection): file.projection for file in files}.values())
    numbers = {repr(projection): number for number, projection in enumerate(projections)}
    sizes = DecodedSizes(filesystem, directory, [_sized(file) for file in files], _THREADS)
    infos, fields = zip(*(_describe(column, files, sizes) for column in chosen), strict=True)
    return Manifest(
        files=tuple(file.file for file in files),
        row_groups=RowGroups(
            file=np.array([number for number, _ in groups], dtype=np.int32),
            index_in_file=np.array([group.index for _, group in groups], dtype=np.int32),
            rows=np.array([group.live_rows for _, group in groups], dtype=np.int64),
            size_bytes=np.array(
                [sum(group.column_bytes[column.name] for column in chosen) for _, group in groups],
                dtype=np.int64,
            ),
        ),
        schema_base64=base64.b64encode(pa.schema(fields).serialize().to_pybytes()).decode(),
        columns=infos,
        page_rows=max((file.page_rows for file in files), default=1),
        view=View(
            title=snapshot.title,
            advice=snapshot.advice,
            filters="" if row_filter is None else str(row_filter),
            projections=projections,
            projection_of=np.array([numbers[repr(file.projection)] for file in files], np.int32),
            live=live,
        ),
    )


def _readable(
    chosen: Sequence[TableColumn], files: Sequence[LiveFile], snapshot: Snapshot
) -> tuple[TableColumn, ...]:
    """The columns that can be read in all files; warns of the others."""
    left_out = {name: reason for file in files for name, reason in file.left_out.items()}
    kept = tuple(column for column in chosen if column.name not in left_out)
    if not kept:
        raise DatasetError(f"{'; '.join(left_out.values())}: convert a DataFrame of the table.")
    if left_out:
        _log.warning(
            "%s is read without %s: %s. Name the columns that you need by columns=, or convert a "
            "DataFrame.",
            snapshot.title,
            ", ".join(map(repr, left_out)),
            "; ".join(left_out.values()),
        )
    return kept


def _sized(file: LiveFile) -> SizedFile:
    """The decoded sizes of a file; all rows of its row groups stand for those that count."""
    count = 1 + max(group.index for group in file.groups)
    rows = [0] * count
    decoded: dict[str, list[int | None]] = {
        name: [0] * count for name in file.groups[0].decoded_bytes
    }
    for group in file.groups:
        rows[group.index] = group.rows
        for name, size in group.decoded_bytes.items():
            decoded[name][group.index] = size
    return SizedFile(
        path=file.file.path, rows=rows, decoded_bytes=decoded, names=file.projection.names
    )


def _describe(
    column: TableColumn, files: Sequence[LiveFile], sizes: DecodedSizes
) -> tuple[ColumnInfo, pa.Field]:
    name = column.name
    dtype = _type_of(column, [file.types[name] for file in files if name in file.types])
    nulls = sum(group.nulls[name] for file in files for group in file.groups)
    seen = Observation()
    for file in files:
        if name in file.seen:
            seen.merge(file.seen[name])
    depth = depth_of(dtype)
    groups = [group for file in files for group in file.groups]
    singles = [group.single[name] for group in groups if name in group.single]
    several = sum(group.live_rows > 1 for group in groups)
    lengths = seen.lengths(depth) if depth else ()
    decoded = sizes.of(pa.field(name, dtype), lengths, {}, {})
    total = decoded.get("decoded_bytes")
    if total:  # That is of all rows, and some may not count.
        live, rows = sum(group.live_rows for group in groups), sum(group.rows for group in groups)
        decoded["decoded_bytes"] = -(-total * live // rows)
    info = ColumnInfo(
        name=name,
        type=str(dtype),
        null_count=nulls + seen.null_count,
        list_lengths=lengths,
        size_bytes=sum(group.column_bytes[name] for group in groups),
        hint=hint_of(dtype),
        is_clustered=2 * len(singles) > several and len(set(singles)) > 1,
        **decoded,
    )
    return info, pa.field(name, dtype)


def _type_of(column: TableColumn, types: Sequence[pa.DataType]) -> pa.DataType:
    """The type to read a column as: as the files have it, where they agree with the table."""
    distinct = list(dict.fromkeys(types))
    if len(distinct) == 1 and is_same_kind(distinct[0], column.type):
        return distinct[0]
    return column.type

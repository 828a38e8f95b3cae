"""Builds a manifest from Parquet files, and later checks the files against it."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.data.dataset.checksum import crc32_from_sidecar
from sparkdl_runner.data.dataset.manifest import ColumnInfo, FileInfo, Manifest
from sparkdl_runner.data.dataset.observe import Observation, depth_of, hint_of, observe
from sparkdl_runner.data.dataset.row_groups import RowGroups
from sparkdl_runner.data.dataset.same_files import SameFiles, footer_bytes, open_file
from sparkdl_runner.data.dataset.scan import scan
from sparkdl_runner.data.errors import ChangedFileError, DatasetError
from sparkdl_runner.foreign_file import open_input

_SCANS = 4
"""Files whose columns are read together: with a few batches each, some 100 MiB."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class _Footer:
    """What is kept of one file's footer; the Parquet metadata itself is large and let go."""

    file: FileInfo
    schema: pa.Schema
    groups: list[tuple[int, int]]
    column_bytes: dict[str, int]
    null_counts: dict[str, int | None]
    single_values: dict[str, list[Any]]
    """By column, the value of each row group that holds one value only."""


def describe_parquet(
    filesystem: pa.fs.FileSystem,
    directory: str,
    files: Sequence[str],
    *,
    null_counts: Mapping[str, int] | None = None,
    list_lengths: Mapping[str, Sequence[int | None]] | None = None,
    just_written: bool = False,
    threads: int = 16,
) -> Manifest:
    """Describes Parquet files from their footers.

    What the caller does not know of nulls and list lengths comes from the footers where they say
    it (nulls of columns that are not nested), and otherwise from reading those columns.

    Args:
        filesystem: Where the files are.
        directory: The data set's directory in ``filesystem``.
        files: Their paths relative to ``directory``; this is the data set's order.
        null_counts: By column, see ``ColumnInfo.null_count``.
        list_lengths: By column, see ``ColumnInfo.list_lengths``.
        just_written: Whether the checksums that Spark left beside the files are still theirs.
        threads: Files looked at together.

    Returns:
        The manifest, not yet written.

    Raises:
        DatasetError: No files; a file is missing or is not Parquet; two files differ in schema.
    """
    if not files:
        raise DatasetError(f"{directory} holds no Parquet file to describe.")
    directory = directory.rstrip("/")
    footers = _in_threads(
        lambda path: _read_footer(filesystem, directory, path, just_written), files, threads
    )
    schema = footers[0].schema
    for footer in footers[1:]:
        _check_same_schema(schema, footer.schema, footers[0].file.path, footer.file.path)

    known_nulls: dict[str, int] = dict(null_counts or {})
    for name in schema.names:
        counts = [footer.null_counts[name] for footer in footers]
        if name not in known_nulls and None not in counts:
            known_nulls[name] = sum(count for count in counts if count is not None)
    known_lengths = {name: tuple(lengths) for name, lengths in (list_lengths or {}).items()}
    unknown = [
        column.name
        for column in schema
        if column.name not in known_nulls
        or (column.name not in known_lengths and depth_of(column.type) > 0)
    ]
    several_rows = sum(rows > 1 for footer in footers for rows, _ in footer.groups)

    def is_clustered(name: str) -> bool:
        values = [value for footer in footers for value in footer.single_values[name]]
        return 2 * len(values) > several_rows and len(set(values)) > 1

    seen: dict[str, Observation] = {name: Observation() for name in unknown}
    if unknown:
        for observations in _in_threads(
            lambda path: _observe_file(filesystem, f"{directory}/{path}", unknown),
            files,
            min(threads, _SCANS),
        ):
            for name, observation in observations.items():
                seen[name].merge(observation)
    columns = tuple(
        ColumnInfo(
            name=column.name,
            type=str(column.type),
            null_count=(
                known_nulls[column.name]
                if column.name in known_nulls
                else seen[column.name].null_count
            ),
            list_lengths=(
                known_lengths[column.name]
                if column.name in known_lengths
                else seen[column.name].lengths(depth_of(column.type))
                if column.name in seen
                else ()
            ),
            size_bytes=sum(footer.column_bytes[column.name] for footer in footers),
            hint=hint_of(column.type),
            is_clustered=is_clustered(column.name),
        )
        for column in schema
    )
    return Manifest(
        files=tuple(footer.file for footer in footers),
        row_groups=RowGroups.of(footer.groups for footer in footers),
        schema_base64=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        columns=columns,
    )


def check_files(
    filesystem: pa.fs.FileSystem,
    directory: str,
    manifest: Manifest,
    same: SameFiles | None = None,
) -> Manifest:
    """Checks that the files of a manifest are still there and unchanged.

    Sizes are compared for all. Only a file that was touched since is looked into: all of it where
    it is local and the manifest has its CRC-32, and otherwise its footer.

    Args:
        filesystem: Where the files are.
        directory: The data set's directory in ``filesystem``.
        manifest: Lists them.
        same: Of this manifest; with what the converter knows, where there is one. By that, a file
            is refused that another user of this host put there, and one on remote storage that
            was written again. By the manifest alone it might be a copy.

    Returns:
        The manifest with the times of the files as they are, so that who checks against that one
        need not look into them again.

    Raises:
        DatasetError: A file is gone, has another size, or other content.
    """
    directory = directory.rstrip("/")
    local = isinstance(filesystem, pa.fs.LocalFileSystem)
    same = same or SameFiles(manifest)
    selector = pa.fs.FileSelector(directory, recursive=True, allow_not_found=True)
    prefix = len(directory) + 1
    found = {info.path[prefix:]: info for info in filesystem.get_file_info(selector)}
    touched: list[int] = []
    times: list[int | None] = []
    for index, file in enumerate(manifest.files):
        path = f"{directory}/{file.path}"
        info = found.get(file.path)
        if info is None or info.type != pa.fs.FileType.File:
            raise DatasetError(
                f"{path} is gone: the manifest lists {len(manifest.files)} files "
                "and expects all of them. Convert the DataFrame again, or restore the file."
            )
        if info.size != file.size_bytes:
            raise DatasetError(
                f"{path} has {info.size:,} bytes and the manifest says "
                f"{file.size_bytes:,}: it was cut short or replaced after the conversion. Convert "
                "the DataFrame again, or restore the file."
            )
        times.append(_settled_time(info))
        if local:
            is_touched = same.is_touched(index, os.stat(path))
        else:
            noted = None if same.converted is None else same.converted.remote_ns
            then = file.modified_ns if noted is None else noted[index]
            is_touched = then is None or info.mtime_ns != then
            if noted is not None:
                _check_not_written_again(path, then, info.mtime_ns)
        if is_touched:
            touched.append(index)

    def compare(index: int) -> None:
        path = f"{directory}/{manifest.files[index].path}"
        stream, opened = open_file(filesystem, path)
        with stream:
            same.check(stream, opened, path, index)

    _in_threads(compare, touched, 16)
    if not touched:
        return manifest
    files = [replace(file, modified_ns=at) for file, at in zip(manifest.files, times, strict=True)]
    return replace(manifest, files=tuple(files))


def _check_not_written_again(path: str, then: int | None, now: int | None) -> None:
    """Refuses an object of another second; a listing and a look at one object may round it."""
    if then is None or now is None or then // 1_000_000_000 == now // 1_000_000_000:
        return
    raise ChangedFileError(
        f"{path} was written again {abs(now - then) / 1e9:,.0f} s after the converter's own file, "
        "and nobody could tell whether it holds the same without reading all of it. Convert the "
        "DataFrame again. If the change is fine, make the converter again, by "
        "make_spark_converter on the driver."
    )


def _read_footer(
    filesystem: pa.fs.FileSystem, directory: str, path: str, just_written: bool
) -> _Footer:
    full_path = f"{directory}/{path}"
    info = filesystem.get_file_info(full_path)
    if info.type != pa.fs.FileType.File:
        raise DatasetError(f"{full_path} is not a file.")
    with open_input(filesystem, full_path) as stream:
        tail, crc32 = footer_bytes(stream, full_path)
    try:
        parquet = pq.ParquetFile(pa.BufferReader(tail), coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{full_path} has a broken Parquet footer: {error}") from error
    metadata = parquet.metadata
    schema = parquet.schema_arrow.remove_metadata()
    owners = _owners(parquet)
    column_bytes = dict.fromkeys(schema.names, 0)
    null_counts: dict[str, int | None] = {
        column.name: None if pa.types.is_nested(column.type) else 0 for column in schema
    }
    single_values: dict[str, list[Any]] = {name: [] for name in schema.names}
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        groups.append((group.num_rows, group.total_byte_size))
        for leaf, name in enumerate(owners):
            chunk = group.column(leaf)
            column_bytes[name] += chunk.total_uncompressed_size
            so_far = null_counts[name]
            if so_far is not None:
                statistics = chunk.statistics
                known = statistics is not None and statistics.has_null_count
                null_counts[name] = so_far + statistics.null_count if known else None
                if group.num_rows > 1 and statistics is not None and statistics.has_min_max:
                    lowest = statistics.min_raw
                    if lowest == statistics.max_raw:
                        single_values[name].append(lowest)
    return _Footer(
        file=FileInfo(
            path=path,
            size_bytes=info.size,
            rows=metadata.num_rows,
            footer_crc32=crc32,
            modified_ns=_settled_time(info),
            crc32=crc32_from_sidecar(filesystem, full_path, info.size) if just_written else None,
        ),
        schema=schema,
        groups=groups,
        column_bytes=column_bytes,
        null_counts=null_counts,
        single_values=single_values,
    )


def _settled_time(info: pa.fs.FileInfo) -> int | None:
    """When a file was last changed, or None if it could change again and show the same time.

    Object stores tell whole seconds, within which anything may still happen.
    """
    changed: int | None = info.mtime_ns
    if changed is None or changed % 1_000_000_000:
        return changed
    return changed if time.time_ns() - changed > 2_000_000_000 else None


def _owners(parquet: pq.ParquetFile) -> list[str]:
    """For each of a file's columns in the sense of Parquet, the column that it is a part of."""
    names = parquet.schema_arrow.names
    owners = []
    for leaf in range(len(parquet.schema)):
        path = parquet.schema.column(leaf).path  # joined by dots, which may be in names, too
        fits = [name for name in names if path == name or path.startswith(f"{name}.")]
        owners.append(max(fits, key=len))
    return owners


def _check_same_schema(first: pa.Schema, other: pa.Schema, first_path: str, path: str) -> None:
    if first.equals(other):
        return
    for name in dict.fromkeys([*first.names, *other.names]):
        here, there = first.get_field_index(name), other.get_field_index(name)
        mine = str(first.field(here).type) if here >= 0 else "no such column"
        theirs = str(other.field(there).type) if there >= 0 else "no such column"
        if mine != theirs:
            raise DatasetError(
                f"column {name!r} is {theirs} in {path} and {mine} in {first_path}: the files of "
                "one data set have one schema. Convert them again from one DataFrame."
            )
    if first.names != other.names:
        raise DatasetError(f"{path} has its columns in another order than {first_path}.")


def _observe_file(
    filesystem: pa.fs.FileSystem, path: str, names: Iterable[str]
) -> dict[str, Observation]:
    seen = {name: Observation() for name in names}
    for batch in scan(filesystem, path, list(seen)):
        for name, observation in seen.items():
            observe(batch.column(name), observation)
    return seen


def _in_threads(
    function: Callable[[_Item], _Result], items: Sequence[_Item], threads: int
) -> list[_Result]:
    """``[function(item) for item in items]``, with several at a time."""
    if len(items) <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)), "sparkdl-footers") as pool:
        return list(pool.map(function, items))

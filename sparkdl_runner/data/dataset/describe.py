"""Builds a manifest from Parquet files: from what Spark wrote, or from any others."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.fs

from sparkdl_runner.base.filesystem import StorageOptions, normalize_url, open_filesystem, redact
from sparkdl_runner.data.dataset.dataset import Dataset, is_near
from sparkdl_runner.data.dataset.decoded_sizes import DecodedSizes, SizedFile
from sparkdl_runner.data.dataset.files import Files
from sparkdl_runner.data.dataset.footers import (
    FooterReader,
    Footers,
    slices_in_threads,
    write_footers,
)
from sparkdl_runner.data.dataset.foreign_folder import PARQUET_ENDINGS, is_hidden
from sparkdl_runner.data.dataset.manifest import (
    WRITTEN_PAGE_BYTES,
    WRITTEN_PAGE_ROWS,
    ColumnInfo,
    Manifest,
)
from sparkdl_runner.data.dataset.observe import (
    depth_of,
    first_file_with_nulls,
    first_file_with_other_lengths,
    hint_of,
    observe_files,
)
from sparkdl_runner.data.dataset.row_groups import RowGroups
from sparkdl_runner.data.errors import ConversionError, DatasetError
from sparkdl_runner.data.parquet.row_groups import RowGroupFacts
from sparkdl_runner.tensors.arrays import is_readable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Written:
    """The files that one Spark job wrote, and the counts it made of them.

    Attributes:
        url: The directory of the Parquet files.
        rows: As counted by the job, or ``None`` if Spark lost the counts.
        content_digest: 16 hex digits that follow from all values and their order, likewise.
        null_counts: By column; columns that are not there are to be looked up in the footers.
        list_lengths: By column, from the outside in; ``None`` where lengths differ.
        shuffle_seed: By which the job shuffled the rows, if it did.
        decoded_bytes: By column, see ``ColumnInfo.decoded_bytes``; columns that are not there are
            measured in the files.
        most_row_bytes: By column, see ``ColumnInfo.most_row_bytes``, likewise.
    """

    url: str
    rows: int | None
    content_digest: str | None
    null_counts: dict[str, int]
    list_lengths: dict[str, tuple[int | None, ...]]
    shuffle_seed: int | None = None
    decoded_bytes: dict[str, int] = field(default_factory=dict)
    most_row_bytes: dict[str, int] = field(default_factory=dict)


def commit(
    written: Written, storage_options: StorageOptions | None, allow_nulls: bool
) -> tuple[str, Dataset]:
    """Describes what Spark wrote, and writes the manifest beside it: now it can be read.

    Returns:
        The directory's URL as readers name it, and the data set.

    Raises:
        ConversionError, DatasetError: As of ``describe_written``.
    """
    url = normalize_url(written.url)
    filesystem, directory = open_filesystem(url, storage_options)
    dataset = describe_written(written, filesystem, directory, "", allow_nulls)
    dataset.manifest.write(filesystem, directory)
    return url, dataset


def describe_written(
    written: Written,
    filesystem: pa.fs.FileSystem,
    directory: str,
    subfolder: str,
    allow_nulls: bool,
) -> Dataset:
    """Describes what Spark wrote, and checks it.

    Args:
        written: What Spark wrote.
        filesystem: Where it is.
        directory: What the paths in the manifest are relative to.
        subfolder: Where in there the files are, such as ``"a/"``; ``""`` for the directory itself.
        allow_nulls: Whether nulls are fine.

    Raises:
        ConversionError: There are not as many rows as Spark counted.
        DatasetError: There are nulls.
    """
    names = list_parquet(filesystem, f"{directory}/{subfolder}".rstrip("/"))
    manifest = describe_parquet(
        filesystem,
        directory,
        [f"{subfolder}{name}" for name in names],
        null_counts=written.null_counts,
        list_lengths=written.list_lengths,
        decoded_bytes=written.decoded_bytes,
        most_row_bytes=written.most_row_bytes,
        just_written=True,
        keep_footers=not is_near(filesystem, directory),
    )
    if written.rows is not None and manifest.rows != written.rows:
        raise ConversionError(
            f"Spark wrote {written.rows:,} rows to {redact(written.url)}, and the files there hold "
            f"{manifest.rows:,}: a failed attempt of a task left a file, or one was lost. Convert "
            "again; if it returns, look at the committer of this storage."
        )
    manifest = replace(
        manifest,
        content_digest=written.content_digest,
        shuffle_seed=written.shuffle_seed,
        page_rows=WRITTEN_PAGE_ROWS,
        page_bytes=WRITTEN_PAGE_BYTES,
    )
    dataset = Dataset(manifest, filesystem, directory)
    check_nulls(dataset, allow_nulls)
    return dataset


def list_parquet(filesystem: pa.fs.FileSystem, directory: str) -> list[str]:
    """The names of the Parquet files in a directory, sorted, without hidden and partial ones."""
    prefix = len(directory.rstrip("/")) + 1
    entries = filesystem.get_file_info(pa.fs.FileSelector(directory, recursive=True))
    names = [info.path[prefix:] for info in entries if info.type == pa.fs.FileType.File]
    return sorted(n for n in names if n.endswith(PARQUET_ENDINGS) and not is_hidden(n))


def describe_parquet(
    filesystem: pa.fs.FileSystem,
    directory: str,
    files: Sequence[str],
    *,
    null_counts: Mapping[str, int] | None = None,
    list_lengths: Mapping[str, Sequence[int | None]] | None = None,
    decoded_bytes: Mapping[str, int] | None = None,
    most_row_bytes: Mapping[str, int] | None = None,
    just_written: bool = False,
    keep_footers: bool = False,
    footers_only: bool = False,
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
        decoded_bytes: By column, see ``ColumnInfo.decoded_bytes``.
        most_row_bytes: By column, see ``ColumnInfo.most_row_bytes``.
        just_written: Whether the checksums that Spark left beside the files are still theirs.
        keep_footers: Whether to write all footers into one file beside them, too.
        footers_only: Whether to read no column: what the footers do not say counts as no nulls and
            lists of any length.
        threads: Files looked at together.

    Returns:
        The manifest, not yet written.

    Raises:
        DatasetError: No files; a file is missing or is not Parquet; two files differ in schema.
    """
    if not files:
        raise DatasetError(
            f"{directory} holds no Parquet file: give the folder in which they lie, or a DataFrame."
        )
    directory = directory.rstrip("/")
    reader = FooterReader(filesystem, directory, just_written=just_written, keep=keep_footers)
    # Nothing is waited for on a local disk, so that threads would only wait for one another.
    at_once = 1 if is_near(filesystem, directory) else threads
    footers = Footers()
    for some in slices_in_threads(reader.read, files, at_once):
        footers.extend(some)
    schema, first_path = footers.schemas[0]
    for other, path in footers.schemas[1:]:
        _check_same_schema(schema, other, first_path, path)
    nulls, lengths = dict(null_counts or {}), dict(list_lengths or {})
    for name in schema.names:
        count = footers.facts.null_count(name)
        if name not in nulls and count is not None:
            nulls[name] = count
    depths = {column.name: depth_of(column.type) for column in schema}
    unknown = []
    for column in schema:
        no_loader = hint_of(column.type) is None and not is_readable(column.type)
        if footers_only or no_loader:
            nulls.setdefault(column.name, 0)
        elif column.name not in nulls or (column.name not in lengths and depths[column.name]):
            unknown.append(column.name)
    all_files = Files.joined(footers.files)
    sized = [] if footers_only else _sized(all_files.paths(), footers.facts)
    sizes = DecodedSizes(filesystem, directory, sized, threads)
    for name in unknown:
        sizes.refuse_too_large(schema.field(name))
    decoded, largest = dict(decoded_bytes or {}), dict(most_row_bytes or {})
    for name, seen in observe_files(filesystem, directory, files, unknown, threads).items():
        nulls.setdefault(name, seen.null_count)
        lengths.setdefault(name, seen.lengths(depths[name]))
        decoded.setdefault(name, seen.decoded_bytes)
        largest.setdefault(name, seen.most_row_bytes)
    columns = tuple(
        ColumnInfo(
            name=column.name,
            type=str(column.type),
            null_count=nulls[column.name],
            list_lengths=tuple(lengths.get(column.name, ())),
            size_bytes=footers.facts.column_bytes[column.name],
            hint=hint_of(column.type),
            is_clustered=footers.facts.is_clustered(column.name),
            **(sizes.of(column, lengths.get(column.name, ()), decoded, largest) if sized else {}),
        )
        for column in schema
    )
    return Manifest(
        files=all_files,
        row_groups=RowGroups.of(footers.facts.counts, footers.facts.rows, footers.facts.size_bytes),
        schema_base64=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        columns=columns,
        may_be_infinite=frozenset(footers.may_be_infinite),
        page_rows=footers.page_rows,
        footer_sizes=write_footers(filesystem, directory, footers) if keep_footers else None,
    )


def _sized(paths: Sequence[str], facts: RowGroupFacts) -> list[SizedFile]:
    """The decoded sizes of all files; of none if no column is of variable size."""
    if not any(facts.decoded_bytes):
        return []
    ends = np.cumsum(facts.counts).tolist()
    rows = [facts.rows[end - count : end] for end, count in zip(ends, facts.counts, strict=True)]
    return list(map(SizedFile, paths, rows, facts.decoded_bytes))


def check_nulls(dataset: Dataset, allow_nulls: bool) -> None:
    """Raises a DatasetError that names column, count and file if there are nulls unasked for."""
    with_nulls = [column for column in dataset.manifest.columns if column.null_count]
    if allow_nulls or not with_nulls:
        return
    listed = ", ".join(f"{column.name!r} ({column.null_count:,})" for column in with_nulls)
    # Only whole files are scanned, not views of them.
    is_whole = dataset.manifest.view is None
    path = first_file_with_nulls(dataset, with_nulls[0].name) if is_whole else None
    first = f", the first in {path}" if path else ""
    raise DatasetError(
        f"There are nulls in column {listed}{first}, and a tensor has none: drop or "
        "fill them in the DataFrame, or pass allow_nulls=True here and nulls='fill', 'nan' or "
        "'mask' to make_torch_dataloader."
    )


def warn_of_ragged(dataset: Dataset) -> None:
    """Warns of list columns that a loader reads only with ``pad=`` or ``ragged=``."""
    for column in dataset.manifest.columns:
        if None in column.list_lengths:
            is_whole = dataset.manifest.view is None
            first = first_file_with_other_lengths(dataset, column.name) if is_whole else None
            _log.warning(
                "Column %r holds lists that differ in length%s: loaders will need pad= or ragged= "
                "for it.",
                column.name,
                f" (first in {first[0]}: {first[1]})" if first else "",
            )


def _check_same_schema(first: pa.Schema, other: pa.Schema, first_path: str, path: str) -> None:
    if first.equals(other):
        return
    for name in dict.fromkeys([*first.names, *other.names]):
        here, there = first.get_field_index(name), other.get_field_index(name)
        mine = str(_plain(first.field(here).type)) if here >= 0 else "no such column"
        theirs = str(_plain(other.field(there).type)) if there >= 0 else "no such column"
        if mine != theirs:
            raise DatasetError(
                f"column {name!r} is {theirs} in {path} and {mine} in {first_path}: the files of "
                "one data set have one schema. Convert them again from one DataFrame."
            )


def _plain(arrow_type: pa.DataType) -> pa.DataType:
    """The type without what a writer chose for the same values: a dictionary, or long offsets."""
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if pa.types.is_large_string(arrow_type):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(arrow_type) else arrow_type

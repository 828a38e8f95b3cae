"""The end of a conversion: what Spark wrote is checked, and the manifest makes it readable."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from pyarrow import fs

from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.locate import first_file_with_nulls, first_file_with_other_lengths
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.same_files import Converted
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.spark_dataset_converter import SparkDatasetConverter, deleter
from sparkdl_runner.filesystem import (
    StorageOptions,
    join_url,
    normalize_url,
    open_filesystem,
    redact,
)

if TYPE_CHECKING:
    from sparkdl_runner.data.convert.spark_writer import Written

_log = logging.getLogger(__name__)


class ConversionError(DatasetError):
    """Spark could not write the files; nothing of them is left to be read by mistake."""


def commit(
    written: Written,
    allow_nulls: bool,
    storage_options: StorageOptions | None,
    own_url: str | None,
) -> SparkDatasetConverter:
    """Describes what was written, checks it, and writes the manifest: only now can it be read.

    Args:
        written: What Spark wrote.
        allow_nulls: Whether nulls are fine.
        storage_options: Credentials and such.
        own_url: The directory that holds this conversion and nothing else, to be deleted with it;
            None for one that stays.
    """
    url = normalize_url(written.url)
    filesystem, directory = open_filesystem(url, storage_options)
    manifest = describe_written(written, filesystem, directory, "", allow_nulls)
    manifest.write(filesystem, directory)
    files = [join_url(url, file.path) for file in manifest.files]
    delete = None if own_url is None else deleter(own_url, storage_options)
    converted = Converted.of(filesystem, directory, manifest)
    return SparkDatasetConverter(url, files, manifest.rows, converted=converted, delete=delete)


def describe_written(
    written: Written,
    filesystem: fs.FileSystem,
    directory: str,
    subfolder: str,
    allow_nulls: bool,
) -> Manifest:
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
        just_written=True,
    )
    if written.rows is not None and manifest.rows != written.rows:
        raise ConversionError(
            f"Spark wrote {written.rows:,} rows to {redact(written.url)}, and the files there hold "
            f"{manifest.rows:,}: a failed attempt of a task left a file, or one was lost. Convert "
            "again; if it returns, look at the committer of this storage."
        )
    check_nulls(filesystem, directory, manifest, allow_nulls)
    warn_of_ragged(filesystem, directory, manifest)
    return replace(manifest, content_digest=written.content_digest)


def list_parquet(filesystem: fs.FileSystem, directory: str) -> list[str]:
    """The names of the Parquet files in a directory, sorted, without hidden and partial ones."""
    prefix = len(directory.rstrip("/")) + 1
    selector = fs.FileSelector(directory, recursive=True)
    names = [
        info.path[prefix:]
        for info in filesystem.get_file_info(selector)
        if info.type == fs.FileType.File
    ]
    hidden = ("_", ".")
    return sorted(
        name
        for name in names
        if name.endswith((".parquet", ".parq"))
        and not any(part.startswith(hidden) for part in name.split("/"))
    )


def check_nulls(
    filesystem: fs.FileSystem, directory: str, manifest: Manifest, allow_nulls: bool
) -> None:
    """Raises a DatasetError that names column, count and file if there are nulls unasked for."""
    found = [column for column in manifest.columns if column.null_count]
    if allow_nulls or not found:
        return
    listed = ", ".join(f"{column.name!r} ({column.null_count:,})" for column in found)
    path = first_file_with_nulls(filesystem, directory, manifest, found[0].name)
    raise DatasetError(
        f"There are nulls in column {listed}, the first in {path}, and a tensor has none: drop or "
        "fill them in the DataFrame, or pass allow_nulls=True here and nulls='fill', 'nan' or "
        "'mask' to make_torch_dataloader."
    )


def warn_of_ragged(filesystem: fs.FileSystem, directory: str, manifest: Manifest) -> None:
    for column in manifest.columns:
        if None in column.list_lengths:
            found = first_file_with_other_lengths(filesystem, directory, manifest, column.name)
            path, lengths = found or ("?", "different numbers")
            _log.warning(
                "Column %r holds lists that differ in length (first in %s: %s): loaders will need "
                "pad= or ragged= for it.",
                column.name,
                path,
                lengths,
            )

"""Data sets that were not converted here: a directory's path, or a converter of petastorm's."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from pyarrow import fs

from sparkdl_runner.base.filesystem import StorageOptions, open_filesystem, redact
from sparkdl_runner.data.consumers.petastorm.unischema import find_unischema, with_codecs
from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.data.convert.described import converter_of
from sparkdl_runner.data.dataset.converted import Converted
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.describe import check_nulls, describe_parquet, warn_of_ragged
from sparkdl_runner.data.dataset.files import Files
from sparkdl_runner.data.dataset.foreign_folder import find_parquet
from sparkdl_runner.data.dataset.lake.open import Choice, open_table, select
from sparkdl_runner.data.dataset.leftovers import MARKER_NAME
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.place import directory_url, running_session
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.errors import DatasetError, NoManifestError


def is_petastorm_converter(df: Any) -> bool:
    """Whether it is what ``petastorm.spark.make_spark_converter`` returned."""
    origin = type(df).__module__.partition(".")[0] == "petastorm"
    return origin and all(hasattr(df, name) for name in ("cache_dir_url", "file_urls"))


def open_existing(
    df: Any, allow_nulls: bool, storage_options: StorageOptions | None, choice: Choice
) -> SparkDatasetConverter:
    """Describes a directory, by its URL or path, or what a converter of petastorm's has written."""
    is_directory = isinstance(df, (str, os.PathLike))
    url = directory_url(df if is_directory else df.cache_dir_url, running_session())
    filesystem, directory = open_filesystem(url, storage_options)
    if is_directory:
        table = open_table(url, filesystem, directory, choice, storage_options)
        if table is not None:
            return _converter_of_table(*table, allow_nulls)
        choice.refuse_versions(f"{redact(url)} is no table of Delta or Iceberg")
        return _describe_directory(url, filesystem, directory, allow_nulls, choice)
    choice.refuse("what petastorm has converted; filter the DataFrame before")
    # Only the files that petastorm lists count.
    names = [file_url.rstrip("/").rpartition("/")[2] for file_url in df.file_urls]
    manifest = describe_parquet(filesystem, directory, sorted(names), just_written=True)
    if manifest.rows != len(df):
        raise DatasetError(
            f"petastorm counted {len(df):,} rows in {redact(url)}, and its files hold "
            f"{manifest.rows:,}: they were changed since. Convert again."
        )
    dataset = Dataset(manifest, filesystem, directory)
    check_nulls(dataset, allow_nulls)
    return SparkDatasetConverter(
        url,
        list(df.file_urls),
        manifest.rows,
        manifest=manifest,
        converted=Converted.of(dataset),
        delete=df.delete,
    )


def _converter_of_table(url: str, table: Dataset, allow_nulls: bool) -> SparkDatasetConverter:
    check_nulls(table, allow_nulls)
    warn_of_ragged(table)
    return converter_of(url, table, embedded=True)


def _describe_directory(
    url: str, filesystem: fs.FileSystem, directory: str, allow_nulls: bool, choice: Choice
) -> SparkDatasetConverter:
    kind = filesystem.get_file_info(directory).type
    if kind == fs.FileType.NotFound:
        raise NoManifestError(f"There is no directory {redact(url)}.")
    if kind == fs.FileType.File:
        raise DatasetError(
            f"{redact(url)} is a file, and no directory of Parquet files: pass its directory, or "
            "spark.read.parquet(…)."
        )
    embedded, is_new = False, True
    try:
        dataset = Dataset(Manifest.read(filesystem, directory), filesystem, directory)
        checked = VerifiedFiles(dataset).check_all()
        # A copy is read whole to check it: once, here, and not again by each rank.
        if checked is not dataset and dataset.is_local:
            embedded, dataset = True, checked
    except NoManifestError:
        # Two directories up, a temporary conversion has a marker. Then it did not finish.
        marker = filesystem.get_file_info(f"{directory.rsplit('/', 2)[0]}/{MARKER_NAME}")
        if marker.type != fs.FileType.NotFound:
            raise
        manifest, is_new = _describe_once(filesystem, directory, url, choice.is_selection)
        embedded = True
        dataset = checked = Dataset(manifest, filesystem, directory)
    unischema = find_unischema(filesystem, directory)
    if choice.is_selection:
        if unischema is not None:
            choice.refuse("a data set that petastorm's codecs encoded")
        return _converter_of_table(url, select(checked, url, choice), allow_nulls)
    if unischema is not None:  # A Unischema says itself which columns may hold nulls.
        embedded, manifest = True, with_codecs(dataset.manifest, unischema)
        dataset = dataset._replace(manifest=manifest)
    else:
        check_nulls(dataset, allow_nulls)
        if is_new:
            warn_of_ragged(dataset)
    return converter_of(url, dataset, checked=checked, embedded=embedded, unischema=unischema)


# By URL, and whether only some of it is wanted, which is described on its own. Kept while the
# files are unchanged, since nulls and list lengths may take reading them.
_described: dict[tuple[str, bool], Manifest] = {}
_described_lock = threading.Lock()
_MOST_DESCRIBED = 32


def _describe_once(
    filesystem: fs.FileSystem, directory: str, url: str, is_selection: bool
) -> tuple[Manifest, bool]:
    """The manifest of a folder that has none, and whether it had to be made."""
    files = find_parquet(filesystem, directory, url)
    with _described_lock:
        manifest = _described.pop((url, is_selection), None)
    is_new = manifest is None or not _is_of(manifest, files)
    if manifest is None or is_new:
        manifest = describe_parquet(filesystem, directory, list(files), footers_only=is_selection)
        _refuse_rewritten(manifest, files, url)
    with _described_lock:
        _described[url, is_selection] = manifest
        if len(_described) > _MOST_DESCRIBED:
            del _described[next(iter(_described))]
    return manifest, is_new


def _refuse_rewritten(manifest: Manifest, files: Mapping[str, fs.FileInfo], url: str) -> None:
    """Refuses a folder in which a file was written between its listing and its reading."""
    described = Files.of(manifest.files)
    sizes = np.array([info.size for info in files.values()])
    times = np.array([-1 if info.mtime_ns is None else info.mtime_ns for info in files.values()])
    modified_ns = described.numbers("modified_ns")
    are_known = (modified_ns >= 0) & (times >= 0)
    others = (described.numbers("size_bytes") != sizes) | (are_known & (modified_ns != times))
    if others.any():
        raise DatasetError(
            f"{described.path(int(others.argmax()))} in {redact(url)} was written while it was "
            "described. Let the writing end, and call make_spark_converter again."
        )


def _is_of(manifest: Manifest, files: Mapping[str, fs.FileInfo]) -> bool:
    """Whether a manifest was made of these very files."""
    known = {file.path: (file.size_bytes, file.modified_ns) for file in manifest.files}
    # No time is known where a file could be changed again and keep it: that never counts as equal.
    return known == {
        name: (info.size, -1 if info.mtime_ns is None else info.mtime_ns)
        for name, info in files.items()
    }

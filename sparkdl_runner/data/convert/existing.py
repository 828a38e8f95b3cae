"""Data sets that were not converted here: a directory's path, or a converter of petastorm's."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyarrow import fs

from sparkdl_runner.data.convert.commit import check_nulls, warn_of_ragged
from sparkdl_runner.data.dataset.describe import check_files, describe_parquet
from sparkdl_runner.data.dataset.foreign_folder import find_parquet
from sparkdl_runner.data.dataset.leftovers import MARKER_NAME
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.same_files import Converted
from sparkdl_runner.data.errors import DatasetError, NoManifestError
from sparkdl_runner.data.petastorm.engine import has_unischema
from sparkdl_runner.data.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.filesystem import (
    StorageOptions,
    join_url,
    normalize_url,
    open_filesystem,
    redact,
)


def describe_directory(
    url: str, allow_nulls: bool, storage_options: StorageOptions | None
) -> SparkDatasetConverter:
    url = normalize_url(url)
    filesystem, directory = open_filesystem(url, storage_options)

    def is_there(path: str) -> bool:
        return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)

    if not is_there(directory):
        raise NoManifestError(f"There is no directory {redact(url)}.")
    if filesystem.get_file_info(directory).type == fs.FileType.File:
        raise DatasetError(
            f"{redact(url)} is a file, and no directory of Parquet files: pass its directory, or "
            "spark.read.parquet(…)."
        )
    embedded, is_new = None, True
    try:
        manifest = Manifest.read(filesystem, directory)
        found = check_files(filesystem, directory, manifest)
        # All of a copy is read to check it: once, here, and not again by each rank.
        if found is not manifest and isinstance(filesystem, fs.LocalFileSystem):
            embedded = manifest = found
    except NoManifestError:
        # The marker of the process that converted lies two directories up.
        if is_there(f"{directory.rsplit('/', 2)[0]}/{MARKER_NAME}"):
            raise
        manifest, is_new = _described.describe(filesystem, directory, url)
        embedded = found = manifest
    unischema = has_unischema(filesystem, directory)
    if not unischema:  # Only petastorm knows what its codecs make of a null.
        check_nulls(filesystem, directory, manifest, allow_nulls)
        if is_new:
            warn_of_ragged(filesystem, directory, manifest)
    files = [join_url(url, file.path) for file in manifest.files]
    return SparkDatasetConverter(
        url,
        files,
        manifest.rows,
        manifest=embedded,
        converted=Converted.of(filesystem, directory, manifest, found),
        unischema=unischema,
    )


class _DescribedFolders:
    """What folders hold, looked at once for as long as their files stay as they are.

    Nulls and lengths of lists may not be known before the files were read.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._manifests: dict[str, Manifest] = {}
        self._lock = threading.Lock()

    def describe(
        self, filesystem: fs.FileSystem, directory: str, url: str
    ) -> tuple[Manifest, bool]:
        """The manifest of a folder, and whether it had to be made."""
        files = find_parquet(filesystem, directory, url)
        with self._lock:
            manifest = self._manifests.pop(url, None)
        is_new = manifest is None or not _is_of(manifest, files)
        if manifest is None or is_new:
            manifest = describe_parquet(filesystem, directory, list(files))
        with self._lock:
            self._manifests[url] = manifest
            if len(self._manifests) > self._most:
                del self._manifests[next(iter(self._manifests))]
        return manifest, is_new


_described = _DescribedFolders(most=32)


def _is_of(manifest: Manifest, files: Mapping[str, fs.FileInfo]) -> bool:
    """Whether a manifest was made of these very files."""
    known = {file.path: (file.size_bytes, file.modified_ns) for file in manifest.files}
    # A time of None is one that could stay as it is while the file is changed.
    return known == {
        name: (info.size, -1 if info.mtime_ns is None else info.mtime_ns)
        for name, info in files.items()
    }


def is_petastorm_converter(df: Any) -> bool:
    origin = type(df).__module__.partition(".")[0] == "petastorm"
    return origin and all(hasattr(df, name) for name in ("cache_dir_url", "file_urls"))


def adopt_petastorm(
    petastorm_converter: Any, allow_nulls: bool, storage_options: StorageOptions | None
) -> SparkDatasetConverter:
    """Takes over what petastorm converted: its list of files is what counts."""
    url = normalize_url(petastorm_converter.cache_dir_url)
    filesystem, directory = open_filesystem(url, storage_options)
    names = [file_url.rstrip("/").rpartition("/")[2] for file_url in petastorm_converter.file_urls]
    manifest = describe_parquet(filesystem, directory, sorted(names), just_written=True)
    if manifest.rows != len(petastorm_converter):
        raise DatasetError(
            f"petastorm counted {len(petastorm_converter):,} rows in {redact(url)}, and its files "
            f"hold {manifest.rows:,}: they were changed since. Convert again."
        )
    check_nulls(filesystem, directory, manifest, allow_nulls)
    return SparkDatasetConverter(
        url,
        list(petastorm_converter.file_urls),
        manifest.rows,
        manifest=manifest,
        converted=Converted.of(filesystem, directory, manifest),
        delete=petastorm_converter.delete,
    )

"""Opens a table by its folder: finds out its format, and which snapshot and rows are wanted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyarrow import fs

from sparkdl_runner.base.filesystem import StorageOptions, redact
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.foreign_folder import DELTA, ICEBERG, kind_of
from sparkdl_runner.data.dataset.lake.delta import read_delta
from sparkdl_runner.data.dataset.lake.describe import describe_snapshot
from sparkdl_runner.data.dataset.lake.iceberg import (
    METADATA,
    METADATA_ENDING,
    newest_metadata,
    read_iceberg,
)
from sparkdl_runner.data.dataset.lake.snapshot import Snapshot, TableColumn, TableFile
from sparkdl_runner.data.dataset.view.filters import Filters

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is wanted of files that are read in place; arguments of ``make_spark_converter``."""

    columns: Sequence[str] | None = None
    filters: Filters | None = None
    version: int | None = None
    snapshot_id: int | None = None

    @property
    def is_selection(self) -> bool:
        """Whether not all rows and columns are wanted."""
        return self.columns is not None or self.filters is not None

    @property
    def column_names(self) -> list[str] | None:
        """The wanted columns; None for all."""
        return None if self.columns is None else list(self.columns)

    def refuse(self, what: str) -> None:
        """Raises a TypeError if anything is chosen of something that is no set of files."""
        given = [name for name, value in vars(self).items() if value is not None]
        if given:
            raise TypeError(
                f"{given[0]}= works for files that are read in place, and this is {what}."
            )

    def refuse_versions(self, why: str) -> None:
        """Raises a TypeError if a version is asked for where there is none."""
        for name in ("version", "snapshot_id"):
            if getattr(self, name) is not None:
                raise TypeError(f"{name} names a state of a table, and {why}.")


def open_table(
    url: str,
    filesystem: fs.FileSystem,
    directory: str,
    choice: Choice,
    storage_options: StorageOptions | None,
) -> tuple[str, Dataset] | None:
    """One snapshot of a table of Delta or Iceberg; None for a folder of another kind.

    Args:
        url: The table's folder; or a metadata file of an Iceberg table, which says its state.
        filesystem: Where it is.
        directory: Its path there.
        choice: Which snapshot, and what of it.
        storage_options: Credentials and such for this process.

    Returns:
        The URL of the table's folder, and the data set.

    Raises:
        DatasetError: The table cannot be read in place.
        ValueError: ``choice`` does not fit the table.
    """
    metadata = None
    if METADATA in url and url.endswith(METADATA_ENDING):
        url, _, metadata = url.rpartition(METADATA)
        directory = directory.rpartition(METADATA)[0]
    kind = ICEBERG if metadata else kind_of(filesystem, directory)
    if kind is DELTA:
        if choice.snapshot_id is not None:
            raise TypeError(f"{redact(url)} is a Delta table: give version=, not snapshot_id=.")
        snapshot = read_delta(url, filesystem, directory, choice.version, storage_options)
    elif kind is ICEBERG:
        if choice.version is not None:
            raise TypeError(f"{redact(url)} is an Iceberg table: give snapshot_id=, not version=.")
        metadata = metadata or newest_metadata(filesystem, directory, redact(url))
        snapshot = read_iceberg(url, metadata, choice.snapshot_id, storage_options)
    else:
        return None
    return url, _described(filesystem, directory, snapshot, choice)


def select(dataset: Dataset, url: str, choice: Choice) -> Dataset:
    """Some rows or columns of a data set whose files are all its rows."""
    shown = redact(url)
    manifest, filesystem, directory = dataset
    snapshot = Snapshot(
        title=shown,
        advice="Convert the DataFrame again, or restore the file.",
        columns=tuple(
            TableColumn(name=column.name, type=column.type, file_names=(column.name,))
            for column in manifest.schema
        ),
        files=tuple(TableFile(path=file.path) for file in manifest.files),
    )
    return _described(filesystem, directory, snapshot, choice)


def _described(
    filesystem: fs.FileSystem, directory: str, snapshot: Snapshot, choice: Choice
) -> Dataset:
    directory = directory.rstrip("/")
    manifest = describe_snapshot(
        filesystem, directory, snapshot, columns=choice.column_names, filters=choice.filters
    )
    _log.info(
        "Reading %s rows of %s in %s row groups of %s files.",
        f"{manifest.rows:,}",
        snapshot.title,
        f"{len(manifest.row_groups):,}",
        f"{len(manifest.files):,}",
    )
    return Dataset(manifest, filesystem, directory)

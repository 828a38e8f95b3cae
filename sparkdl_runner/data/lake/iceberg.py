"""Finds the files of one snapshot of an Iceberg table, by ``pyiceberg``."""

from __future__ import annotations

from pyarrow import fs

from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.lake.snapshot import Snapshot
from sparkdl_runner.filesystem import StorageOptions, redact


def read_iceberg(
    url: str,
    filesystem: fs.FileSystem,
    directory: str,
    snapshot_id: int | None,
    storage_options: StorageOptions | None,
) -> Snapshot:
    """Refuses."""
    raise DatasetError(
        f"{redact(url)} is an Iceberg table, whose folder also holds files of other versions: "
        "pass spark.read.format('iceberg').load(…) instead of its path."
    )

"""Finds the files of one snapshot of an Iceberg table, by ``pyiceberg``, without a catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from sparkdl_runner.base.filesystem import StorageOptions, local_path, redact
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.data.dataset.lake.paths import OutsideError, bare, path_in_table
from sparkdl_runner.data.dataset.lake.snapshot import (
    Snapshot,
    TableColumn,
    TableFile,
    has_sure_bounds,
    missing_package,
)
from sparkdl_runner.data.errors import DatasetError

FOLDER, LISTED_FOLDER = "sparkdl-runner.folder", "sparkdl-runner.listed-folder"
"""Properties of a local table: its folder, and the one that its metadata name."""
METADATA = "/metadata/"
METADATA_ENDING = ".metadata.json"
_NUMBERED = re.compile(r"v?(\d+)(-.*)?(\.gz)?\.metadata\.json(\.gz)?")
_READER = "spark.read.format('iceberg').load(…)"
_CONVERTED = f"pass {_READER}, which is converted"

_FILE_IO = {
    "access_key": "s3.access-key-id",
    "secret_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "endpoint_override": "s3.endpoint",
    "anonymous": "s3.anonymous",
    "request_timeout": "s3.request-timeout",
    "connect_timeout": "s3.connect-timeout",
    "account_name": "adls.account-name",
    "account_key": "adls.account-key",
    "sas_token": "adls.sas-token",
}
"""pyarrow's name of a storage option, and that of pyiceberg."""


def read_iceberg(
    url: str,
    metadata: str,
    snapshot_id: int | None,
    storage_options: StorageOptions | None,
) -> Snapshot:
    """The files of a snapshot of an Iceberg table; of the current one without ``snapshot_id``.

    Args:
        url: The table's folder.
        metadata: The name of a metadata file in there, see ``newest_metadata``.
        snapshot_id: Which snapshot.
        storage_options: Credentials and such for this process.

    Raises:
        DatasetError: It cannot be read in place, or there is no such snapshot.
    """
    shown = redact(url)
    try:
        from pyiceberg.table import StaticTable
    except ImportError:
        raise missing_package("pyiceberg", f"{shown} is an Iceberg table", _READER) from None
    try:
        options = _options(storage_options)
        if local_path(url) is not None:
            options["py-io-impl"] = "sparkdl_runner.data.dataset.lake.iceberg_files.LocalFileIO"
            options[FOLDER] = url
        table = StaticTable.from_metadata(f"{url}{METADATA}{metadata}", options)
        table.io.properties[LISTED_FOLDER] = table.location()
        return _read(table, url, snapshot_id)
    except DatasetError:
        raise
    except OutsideError as error:
        raise DatasetError(f"The Iceberg table {shown} lists {error}: {_CONVERTED}.") from None
    except Exception as error:  # pyiceberg's errors have no class in common.
        if "equality" in str(error).lower():
            raise DatasetError(
                f"The Iceberg table {shown} deletes rows by their values (equality deletes, as "
                f"Flink writes them), which is not read in place: {_CONVERTED}, or let "
                "rewrite_data_files (CALL …system.rewrite_data_files) apply the deletes."
            ) from error
        raise DatasetError(
            f"The Iceberg table {shown} cannot be read: {first_line(error).rstrip('.')}. Instead "
            f"of its path, {_CONVERTED}."
        ) from error


def newest_metadata(filesystem: fs.FileSystem, directory: str, shown: str) -> str:
    """The name of a table's newest metadata file.

    Raises:
        DatasetError: Only the table's catalog could say which it is.
    """
    entries = filesystem.get_file_info(fs.FileSelector(f"{directory}{METADATA}".rstrip("/")))
    numbered: dict[int, list[str]] = {}
    unnumbered: list[str] = []
    for entry in entries:
        match = _NUMBERED.fullmatch(entry.base_name)
        if match is not None:
            numbered.setdefault(int(match[1]), []).append(entry.base_name)
        elif METADATA_ENDING in entry.base_name:
            unnumbered.append(entry.base_name)  # It may be newer than all that have a number.
    names: list[str] = [*(numbered[max(numbered)] if numbered else []), *unnumbered]
    if len(names) != 1 or unnumbered:
        several = " and ".join(sorted(names)) or "no metadata file"
        raise DatasetError(
            f"The Iceberg table {shown} has {several} as its newest state: pass the path of the "
            "one that its catalog names (table.metadata_location of pyiceberg)."
        )
    return names[0]


def _read(table: Any, url: str, snapshot_id: int | None) -> Snapshot:
    from pyiceberg.manifest import FileFormat

    shown = redact(url)
    known = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if known is None and snapshot_id is not None:
        raise DatasetError(
            f"The Iceberg table {shown} has no snapshot {snapshot_id}; it has "
            f"{', '.join(str(snapshot.snapshot_id) for snapshot in table.snapshots()) or 'none'}."
        )
    which = "no snapshot yet" if known is None else f"snapshot {known.snapshot_id}"
    title = f"{which} of the Iceberg table {shown}"
    scan = table.scan(snapshot_id=snapshot_id)
    schema = table.schema() if known is None else scan.projection()
    mapping = table.name_mapping()
    mapped = (
        {} if mapping is None else {field.field_id: tuple(field.names) for field in mapping.root}
    )
    columns = tuple(
        TableColumn(
            name=column.name,
            type=_type_of(column),
            file_names=mapped.get(column.field_id, ()),
            field_id=column.field_id,
            default=_plain(column.initial_default),
        )
        for column in schema.fields
    )
    deletes = _Deletes(table.io)
    files = []
    for task in () if known is None else scan.plan_files():
        path = task.file.file_path
        if task.file.file_format != FileFormat.PARQUET:
            raise DatasetError(
                f"{title} lists {redact(path)}, which is no Parquet file: {_CONVERTED}."
            )
        # A table that was moved as a whole still lists where it was.
        root = table.location() if bare(path).startswith(f"{bare(table.location())}/") else url
        for listed in (path, *(delete.file_path for delete in task.delete_files)):
            path_in_table(listed, root, is_encoded=False)
        files.append(
            TableFile(
                path=path_in_table(path, root, is_encoded=False),
                partition=_partition(table, task.file, columns),
                bounds=_bounds(task.file, columns),
                deleted=deletes.of(path, task.delete_files),
            )
        )
    return Snapshot(
        title=title,
        advice=(
            f"This data set is {title}: expire_snapshots deletes files that only older snapshots "
            "have (history.expire.max-snapshot-age-ms, 5 days by default). Open the current "
            "snapshot and start again, or keep snapshots for longer than a training takes, by a "
            "tag say, or convert a DataFrame of the table."
        ),
        columns=columns,
        files=tuple(sorted(files, key=lambda file: file.path)),
    )


def _partition(table: Any, file: Any, columns: Iterable[TableColumn]) -> Mapping[str, Any]:
    """The values of columns by which the table is partitioned as they are."""
    from pyiceberg.transforms import IdentityTransform

    by_id = {column.field_id: column for column in columns}
    result = {}
    for number, field in enumerate(table.specs()[file.spec_id].fields):
        column = by_id.get(field.source_id)
        if column is not None and isinstance(field.transform, IdentityTransform):
            value = _plain(file.partition[number])
            result[column.name] = pa.scalar(value, column.type).as_py()
    return result


def _type_of(column: Any) -> pa.DataType:
    """The Arrow type of a column; null for one that this Arrow has no type for."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema
    from pyiceberg.types import UUIDType

    if isinstance(column.field_type, UUIDType):
        return pa.binary(16)
    try:
        return schema_to_pyarrow(Schema(column), include_field_ids=False).field(0).type
    except AttributeError:
        return pa.null()


def _plain(value: Any) -> Any:
    return value.bytes if isinstance(value, UUID) else value


def _bounds(file: Any, columns: Iterable[TableColumn]) -> Mapping[str, Any]:
    """The lowest and highest values that the manifests have of a file.

    Whole numbers and days are little endian, in as many bytes as their type had at that time:
    https://iceberg.apache.org/spec/#binary-single-value-serialization
    """
    low, high = file.lower_bounds or {}, file.upper_bounds or {}
    result = {}
    for column in columns:
        if has_sure_bounds(column.type) and column.field_id in low and column.field_id in high:
            pair = [
                pa.scalar(int.from_bytes(side[column.field_id], "little", signed=True))
                for side in (low, high)
            ]
            wide = pa.int32() if pa.types.is_date32(column.type) else column.type
            result[column.name] = tuple(side.cast(wide).cast(column.type).as_py() for side in pair)
    return result


class _Deletes:
    """Reads files of positions of deleted rows, each once."""

    def __init__(self, io: Any) -> None:
        self._io = io
        self._read: dict[str, Mapping[str, npt.NDArray[np.int64]]] = {}

    def of(self, path: str, files: Iterable[Any]) -> npt.NDArray[np.int64] | None:
        """The deleted rows of a data file, sorted; None for none."""
        deleted = []
        for file in files:
            if file.file_path not in self._read:
                self._read[file.file_path] = self._positions(file)
            deleted.append(self._read[file.file_path].get(path))
        there = [rows for rows in deleted if rows is not None and len(rows)]
        return np.unique(np.concatenate(there)) if there else None

    def _positions(self, file: Any) -> Mapping[str, npt.NDArray[np.int64]]:
        from pyiceberg.manifest import FileFormat
        from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
        from pyiceberg.table.puffin import PuffinFile

        with self._io.new_input(file.file_path).open() as stream:
            content = stream.read()
        if file.file_format == FileFormat.PUFFIN:
            vectors = deletion_vectors_from_puffin_file(PuffinFile(content))
            return {
                vector.referenced_data_file: vector.to_vector().to_numpy() for vector in vectors
            }
        if file.file_format != FileFormat.PARQUET:
            raise ValueError(f"it deletes rows by {file.file_path}, which is no Parquet file")
        table = pq.read_table(pa.BufferReader(content), columns=["file_path", "pos"])
        paths = table.column("file_path").to_numpy()
        order = np.argsort(paths, kind="stable")
        positions = table.column("pos").to_numpy()[order].astype(np.int64)
        names, starts = np.unique(paths[order].astype(str), return_index=True)
        return dict(zip(names.tolist(), np.split(positions, starts[1:]), strict=True))


def _options(options: StorageOptions | None) -> dict[str, str]:
    import os

    settings = {_FILE_IO.get(name, name): str(value) for name, value in (options or {}).items()}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        settings.setdefault("s3.endpoint", endpoint)
    endpoint = settings.get("s3.endpoint")
    if endpoint and "://" not in endpoint:
        settings["s3.endpoint"] = f"{(options or {}).get('scheme', 'https')}://{endpoint}"
    return settings

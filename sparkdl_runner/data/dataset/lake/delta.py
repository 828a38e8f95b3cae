"""Finds the files of one version of a Delta table, by delta-rs (the package ``deltalake``)."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import fs

from sparkdl_runner.base.filesystem import StorageOptions, local_path, redact
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.data.dataset.lake.deletion_vectors import LOG, deleted_rows, find_vectors
from sparkdl_runner.data.dataset.lake.paths import OutsideError, path_in_table
from sparkdl_runner.data.dataset.lake.snapshot import (
    Snapshot,
    TableColumn,
    TableFile,
    has_sure_bounds,
    missing_package,
)
from sparkdl_runner.data.errors import DatasetError

_UNDERSTOOD = frozenset(
    {
        "appendOnly",
        "catalogManaged-preview",
        "checkConstraints",
        "changeDataFeed",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Reader features of the protocol that change nothing here, or that this file reads."""

_OBJECT_STORE = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_override": "AWS_ENDPOINT_URL",
    "anonymous": "AWS_SKIP_SIGNATURE",
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
}
"""pyarrow's name of a storage option, and that of delta-rs."""


_BROKEN = (ValueError, KeyError, TypeError)
"""What a log raises that says something else than the protocol."""
_CONVERTED = "pass spark.read.format('delta').load(…), which is converted"


def read_delta(
    url: str,
    filesystem: fs.FileSystem,
    directory: str,
    version: int | None,
    storage_options: StorageOptions | None,
) -> Snapshot:
    """The files of a version of a Delta table; of the newest without ``version``.

    Args:
        url: The table's folder.
        filesystem: Where it is.
        directory: Its path there.
        version: Which version.
        storage_options: Credentials and such for this process.

    Raises:
        DatasetError: It cannot be read in place, or there is no such version.
    """
    shown = redact(url)
    try:
        import deltalake
    except ImportError:
        reader = "spark.read.format('delta').load(…)"
        raise missing_package("deltalake", f"{shown} is a Delta table", reader) from None
    place = local_path(url) or url
    options = _options(storage_options, place)
    try:
        with _readable(place) as folder:
            table = deltalake.DeltaTable(folder, version=version, storage_options=options)
            return _read(table, shown, filesystem, directory)
    except DatasetError:
        raise
    except (deltalake.exceptions.DeltaError, pa.ArrowException, OSError, *_BROKEN) as error:
        which = "" if version is None else f"version {version} of "
        instead = (
            "Pass spark.read.format('delta').load(…) instead of its path, which is converted."
            if version is None
            else "DESCRIBE HISTORY lists the versions that are left."
        )
        raise DatasetError(
            f"{which}the Delta table {shown} cannot be read: {first_line(error).rstrip('.')}. "
            f"{instead}"
        ) from error


@contextmanager
def _readable(place: str) -> Iterator[str]:
    """A folder that delta-rs reads as that of the table.

    It decodes ``%20`` in the name of a local folder, and would read another folder's log.
    """
    if "://" in place or not re.search(r"[%\\\x00-\x1f]", place):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl_runner-delta-") as folder:
        os.symlink(f"{place}/{LOG}", f"{folder}/{LOG}")
        yield folder


def _read(table: Any, shown: str, filesystem: fs.FileSystem, directory: str) -> Snapshot:
    title = f"version {table.version()} of the Delta table {shown}"
    features = set(table.protocol().reader_features or ())
    unknown = sorted(features - _UNDERSTOOD)
    if unknown:
        raise DatasetError(
            f"{title} needs the reader feature {unknown[0]}, which is not read in place: "
            f"{_CONVERTED}."
        )
    partitioned = table.metadata().partition_columns
    columns = _columns(table)
    actions = pa.table(table.get_add_actions()).to_pylist()
    has_vectors = "deletionVectors" in features
    vectors = find_vectors(filesystem, directory, table.version()) if has_vectors else {}
    files = []
    for action in actions:
        values = action.get("partition") or {}
        try:
            vector = vectors[action["path"]] if has_vectors else None
            path = path_in_table(action["path"], directory)
            deleted = None
            if vector is not None:
                deleted = deleted_rows(filesystem, directory, vector, action["num_records"])
        except OutsideError as error:
            like = ", as a shallow clone does" if error.is_whole else ""
            raise DatasetError(f"{title} lists {error}{like}: {_CONVERTED}.") from None
        files.append(
            TableFile(
                path=path,
                partition={name: values.get(name) for name in partitioned},
                bounds=_bounds(action, columns),
                deleted=deleted,
            )
        )
    return Snapshot(
        title=title,
        advice=(
            f"This data set is {title}: VACUUM deletes the files that a later version has "
            "replaced, once they are older than its retention (delta.deletedFileRetentionDuration, "
            "7 days by default). Open the newest version and start again, or keep files for longer "
            "than a training takes, or convert a DataFrame of the table."
        ),
        columns=columns,
        files=tuple(sorted(files, key=lambda file: file.path)),
    )


def _bounds(action: Mapping[str, Any], columns: Iterable[TableColumn]) -> Mapping[str, Any]:
    """The lowest and highest values that the log has of a file."""
    low, high = action.get("min") or {}, action.get("max") or {}
    pairs = {
        column.name: (low.get(column.name), high.get(column.name))
        for column in columns
        if has_sure_bounds(column.type) and column.file_names == (column.name,)
    }
    return {name: pair for name, pair in pairs.items() if None not in pair}


def _columns(table: Any) -> tuple[TableColumn, ...]:
    """The table's columns, with the names that its files have for them."""
    fields = json.loads(table.schema().to_json())["fields"]
    types = pa.schema(table.schema().to_arrow())
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    result = []
    for field in fields:
        metadata: Mapping[str, Any] = field.get("metadata") or {}
        number = metadata.get("delta.columnMapping.id") if mode == "id" else None
        name = field["name"]
        physical = metadata.get("delta.columnMapping.physicalName", name)
        result.append(
            TableColumn(
                name=name,
                type=types.field(name).type,
                file_names=(name if mode == "none" else physical,),
                field_id=None if number is None else int(number),
            )
        )
    return tuple(result)


def _options(options: StorageOptions | None, place: str) -> dict[str, str] | None:
    settings = {
        _OBJECT_STORE.get(name, name): str(value) for name, value in (options or {}).items()
    }
    endpoint = settings.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and place.startswith("s3"):
        if "://" not in endpoint:
            endpoint = f"{(options or {}).get('scheme', 'https')}://{endpoint}"
        settings["AWS_ENDPOINT_URL"] = endpoint
        settings.setdefault("AWS_ALLOW_HTTP", str(endpoint.startswith("http://")).lower())
    return settings or None

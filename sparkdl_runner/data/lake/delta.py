"""Finds the files of one version of a Delta table, by delta-rs (the package ``deltalake``)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.lake.snapshot import (
    Snapshot,
    TableColumn,
    TableFile,
    has_sure_bounds,
    missing_package,
)
from sparkdl_runner.filesystem import StorageOptions, local_path, redact

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


def read_delta(url: str, version: int | None, storage_options: StorageOptions | None) -> Snapshot:
    """The files of a version of a Delta table; of the newest without ``version``.

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
        table = deltalake.DeltaTable(place, version=version, storage_options=options)
        return _read(table, shown)
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        which = "" if version is None else f"version {version} of "
        instead = (
            "Pass spark.read.format('delta').load(…) instead of its path, which is converted."
            if version is None
            else "DESCRIBE HISTORY lists the versions that are left."
        )
        raise DatasetError(
            f"{which}the Delta table {shown} cannot be read: {str(error).rstrip('.')}. {instead}"
        ) from error


def _read(table: Any, shown: str) -> Snapshot:
    title = f"version {table.version()} of the Delta table {shown}"
    unknown = sorted(set(table.protocol().reader_features or ()) - _UNDERSTOOD)
    if unknown:
        raise DatasetError(
            f"{title} needs the reader feature {unknown[0]}, which is not read in place: pass "
            "spark.read.format('delta').load(…), which is converted."
        )
    partitioned = table.metadata().partition_columns
    columns = _columns(table)
    actions = pa.table(table.get_add_actions())
    deleted = _deleted(table)
    files = []
    for action in actions.to_pylist():
        path = unquote(action["path"])
        if "://" in path or path.startswith("/"):
            raise DatasetError(
                f"{title} lists {redact(path)}, which is not in its folder, as a shallow clone "
                "does: pass spark.read.format('delta').load(…), which is converted."
            )
        values = action.get("partition") or {}
        partition = {column.name: values.get(column.name) for column in columns}
        files.append(
            TableFile(
                path=path,
                partition={name: partition[name] for name in partitioned},
                bounds=_bounds(action, columns),
                deleted=deleted.pop(path, None),
            )
        )
    if deleted:
        raise DatasetError(
            f"{title} deletes rows of {min(deleted)}, which it does not list: pass "
            "spark.read.format('delta').load(…), which is converted."
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
    found = {
        column.name: (low.get(column.name), high.get(column.name))
        for column in columns
        if has_sure_bounds(column.type) and column.file_names == (column.name,)
    }
    return {name: pair for name, pair in found.items() if None not in pair}


def _columns(table: Any) -> tuple[TableColumn, ...]:
    """The table's columns, with the names that its files have for them."""
    fields = json.loads(table.schema().to_json())["fields"]
    types = pa.schema(table.schema().to_arrow())
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    result = []
    for one in fields:
        metadata: Mapping[str, Any] = one.get("metadata") or {}
        number = metadata.get("delta.columnMapping.id") if mode == "id" else None
        name = one["name"]
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


def _deleted(table: Any) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """For each file, the rows that deletion vectors delete."""
    root = table.table_uri.rstrip("/") + "/"
    result = {}
    for found in table.deletion_vectors():
        batch = pa.record_batch(found)
        kept = batch.column("selection_vector")
        for number, path in enumerate(batch.column("filepath").to_pylist()):
            # A vector may end before the file: the rows after it are there.
            keep = np.asarray(kept[number].values)
            name = unquote(path.removeprefix(root).removeprefix(quote(root, safe=":/%")))
            result[name] = np.flatnonzero(~keep)
    return result


def _options(options: StorageOptions | None, place: str) -> dict[str, str] | None:
    import os

    found = {_OBJECT_STORE.get(name, name): str(value) for name, value in (options or {}).items()}
    endpoint = found.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and place.startswith("s3"):
        if "://" not in endpoint:
            endpoint = f"{(options or {}).get('scheme', 'https')}://{endpoint}"
        found["AWS_ENDPOINT_URL"] = endpoint
        found.setdefault("AWS_ALLOW_HTTP", str(endpoint.startswith("http://")).lower())
    return found or None

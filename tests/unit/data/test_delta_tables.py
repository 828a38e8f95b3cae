"""Delta tables are read in place: one version, without its deleted rows, as delta-rs reads it."""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Sequence
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from parquet_sets import small_blocks
from pyroaring import BitMap64

from sparkdl_runner.data import DatasetError, make_spark_converter

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def rows_of(place: Any, names: Sequence[str], **arguments: Any) -> list[tuple[Any, ...]]:
    """All rows that a loader gives, sorted."""
    loading = arguments.pop("loading", {})
    converter = make_spark_converter(str(place), allow_nulls=True, **arguments)
    found = []
    with converter.make_torch_dataloader(7, num_epochs=1, tail="uneven", **loading) as loader:
        for batch in loader:
            columns = [batch[name] for name in names]
            values = [one if isinstance(one, list) else one.tolist() for one in columns]
            found += list(zip(*values, strict=True))
    assert len(found) == len(converter)
    return sorted(found)


def numbers(first: int, last: int) -> pa.Table:
    ids = range(first, last)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "place": ["a b/c%é" if i % 2 else "x" for i in ids],
            "day": [date(2024, 1, 1 + i % 3) for i in ids],
        }
    )


def test_one_version_with_its_partition_and_columns_that_were_added(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, numbers(0, 50), partition_by=["place", "day"])
    added = numbers(50, 60).append_column("size", pa.array(range(10), pa.int32()))
    write_deltalake(table, added, mode="append", schema_mode="merge")
    DeltaTable(table).delete("id < 5")
    names = ["id", "place", "day", "size"]
    days = {d: (date(2024, 1, 1 + d) - date(1970, 1, 1)).days for d in range(3)}
    row = lambda i: (i, "a b/c%é" if i % 2 else "x", days[i % 3], max(i - 50, -1))  # noqa: E731
    fill = {"loading": {"nulls": "fill", "fill_value": -1}}
    assert rows_of(table, names, **fill) == [row(i) for i in range(5, 60)]
    assert rows_of(table, names, version=1, **fill) == [row(i) for i in range(60)]
    assert rows_of(table, names[:3], version=0) == [row(i)[:3] for i in range(50)]
    with pytest.raises(DatasetError, match=r"version 9 of the Delta table .* cannot be read"):
        make_spark_converter(str(table), version=9)
    with pytest.raises(TypeError, match="Delta table: give version="):
        make_spark_converter(str(table), snapshot_id=9)


@pytest.mark.parametrize(("rows", "sorted_by"), [(3, ["label"]), (1, [])])
def test_the_column_that_files_are_sorted_by_is_known(
    tmp_path: Path, rows: int, sorted_by: list[str]
) -> None:
    for label in range(2):
        table = pa.table({"id": range(rows), "label": [label] * rows, "same": [0] * rows})
        write_deltalake(tmp_path, table, mode="append")
    columns = make_spark_converter(str(tmp_path)).open().manifest.columns
    assert [one.name for one in columns if one.is_clustered] == sorted_by


def test_files_without_wanted_rows_by_the_log_are_not_opened(tmp_path: Path) -> None:
    table = tmp_path / "table"
    for first in (0, 10):
        write_deltalake(table, numbers(first, first + 10), mode="append")
    [old, _] = sorted(table.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    old.unlink()  # Whoever opens it is told that it is gone.
    day = [("day", ">", date(2024, 1, 3))]
    filters = [[("id", ">=", 10), ("id", "<", 15)], day]
    assert rows_of(table, ["id"], filters=filters) == [(i,) for i in range(10, 15)]
    with pytest.raises(DatasetError, match=r"\.parquet is not a file"):
        make_spark_converter(str(table), filters=[("id", ">=", 9)])


def test_the_bytes_of_a_single_row_are_those_of_its_file(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1]}))
    (file,) = tmp_path.glob("*.parquet")
    size = pq.read_metadata(file).row_group(0).column(0).total_uncompressed_size
    converter = make_spark_converter(str(tmp_path))
    assert converter.open().manifest.column("id").size_bytes == size


def test_a_converter_goes_on_with_its_version_while_the_table_changes(tmp_path: Path) -> None:
    write_deltalake(tmp_path, numbers(0, 40))
    converter = make_spark_converter(tmp_path)
    write_deltalake(tmp_path, numbers(40, 80), mode="append")
    with converter.make_torch_dataloader(4, num_epochs=1, seed=3) as loader:
        batches = iter(loader)
        first = [int(i) for _ in range(3) for i in next(batches)["id"]]
        state = loader.state_dict()
    again = make_spark_converter(tmp_path, version=0)  # Another process that resumes.
    with again.make_torch_dataloader(4, num_epochs=1, seed=3) as loader:
        loader.load_state_dict(state)
        rest = [int(i) for batch in loader for i in batch["id"]]
    assert sorted(first + rest) == list(range(40))
    newest = make_spark_converter(tmp_path)
    with (
        newest.make_torch_dataloader(4, num_epochs=1, seed=3) as loader,
        pytest.raises(DatasetError, match="another data set"),
    ):
        loader.load_state_dict(state)


def deletion_vector(rows: Sequence[int]) -> dict[str, Any]:
    """An inline vector, by the protocol: a magic number, and 64-bit bitmaps; in Z85."""
    data = struct.pack("<i", 1681511377) + BitMap64(rows).serialize()
    padded = data + bytes(-len(data) % 4)
    text = base64.b85encode(padded).decode().translate(str.maketrans(_B85, _Z85))
    return {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


def log(table: Path, version: int, actions: Sequence[dict[str, Any]]) -> None:
    text = "\n".join(map(json.dumps, actions))
    (table / "_delta_log" / f"{version:020}.json").write_text(text)


def protocol(*features: str) -> dict[str, Any]:
    both = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **both}}


def added(table: Path, name: str, **more: Any) -> dict[str, Any]:
    size = os.path.getsize(table / name)
    common = {"path": name, "size": size, "modificationTime": 0, "dataChange": True}
    return {"add": {**common, "partitionValues": {}, **more}}


def test_rows_under_a_deletion_vector_are_not_there(tmp_path: Path) -> None:
    table = tmp_path / "a table"
    nulls = pa.array([None if i == 3 else i for i in range(100)], pa.int64())
    whole = pa.table({"id": range(100), "value": nulls})
    write_deltalake(table, whole.slice(0, 0))
    pq.write_table(whole, table / "part-0.parquet", row_group_size=30)
    gone = [3, 29, 30, *range(60, 90), 99]
    stats = json.dumps({"numRecords": 100})
    file = added(table, "part-0.parquet", stats=stats, deletionVector=deletion_vector(gone))
    log(table, 1, [protocol("deletionVectors"), file])
    expected = [i for i in range(100) if i not in gone]
    assert rows_of(table, ["id", "value"]) == [(i, i) for i in expected]
    converter = make_spark_converter(table)  # The only null is deleted.
    assert converter._manifest.row_groups.rows.tolist() == [28, 29, 9]
    some = make_spark_converter(table, filters=[("id", "<", 32), ("id", "!=", 7)])
    assert len(some) == 28


def test_a_table_whose_columns_were_renamed(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([], pa.int64())}))
    pq.write_table(pa.table({"col-1": [1, 2, 3], "col-2": [4, 5, 6]}), tmp_path / "p.parquet")
    mapped = [
        {
            "name": name,
            "type": "long",
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            },
        }
        for number, name in ((2, "b c"), (1, "id"))
    ]
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": mapped}),
        "partitionColumns": [],
        "configuration": {"delta.columnMapping.mode": "name"},
    }
    log(
        tmp_path,
        1,
        [protocol("columnMapping"), {"metaData": metadata}, added(tmp_path, "p.parquet")],
    )
    assert rows_of(tmp_path, ["id", "b c"]) == [(1, 4), (2, 5), (3, 6)]
    assert rows_of(tmp_path, ["b c"], filters=[("b c", ">=", 5)], columns=["b c"]) == [(5,), (6,)]


def test_a_type_that_was_widened(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([1], pa.int64())}))
    pq.write_table(pa.table({"id": pa.array([7], pa.int32())}), tmp_path / "p.parquet")
    log(tmp_path, 1, [added(tmp_path, "p.parquet")])
    assert rows_of(tmp_path, ["id"]) == [(1,), (7,)]
    pq.write_table(pa.table({"id": ["seven"]}), tmp_path / "q.parquet")
    log(tmp_path, 2, [added(tmp_path, "q.parquet")])
    with pytest.raises(DatasetError, match=r"'id' is string in .*q\.parquet and int64 in the tab"):
        make_spark_converter(tmp_path, columns=["id"])


def test_timestamps_as_spark_writes_them(tmp_path: Path) -> None:
    """96 bits, of which Parquet does not say that they are in UTC."""
    times = pa.array([1_700_000_000_123_456 + i for i in range(9)], pa.timestamp("us", "UTC"))
    table = pa.table({"id": range(9), "time": times})
    write_deltalake(tmp_path / "table", table)
    [file] = (tmp_path / "table").glob("*.parquet")
    pq.write_table(table, file, use_deprecated_int96_timestamps=True)
    found = rows_of(tmp_path / "table", ["id", "time"])
    assert found == [(i, 1_700_000_000_123_456 + i) for i in range(9)]
    late = [("time", ">=", times[5].as_py())]
    assert rows_of(tmp_path / "table", ["id"], filters=late) == [(i,) for i in range(5, 9)]


def test_what_is_not_read_in_place_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1]}), partition_by=None)
    elsewhere = {"path": "s3://other/p.parquet", "size": 1, "modificationTime": 0}
    log(tmp_path, 1, [{"add": {**elsewhere, "dataChange": True, "partitionValues": {}}}])
    with pytest.raises(DatasetError, match=r"version 1 of the Delta .*s3://other.*shallow clone"):
        make_spark_converter(tmp_path)
    with pytest.raises(TypeError, match=r"version names a state of a table, and .* is no table"):
        make_spark_converter(tmp_path / "none", version=1)


def test_a_table_that_is_vacuumed_in_mid_epoch(tmp_path: Path) -> None:
    """The error says which version, which file, and what to do."""
    for first in range(0, 40, 10):
        write_deltalake(tmp_path, numbers(first, first + 10), mode="append")
    converter = make_spark_converter(tmp_path)
    sentence = r"part-\S+\.parquet.*version 3 of the Delta table .*VACUUM .* retention"
    with (
        small_blocks(1_000),
        converter.make_torch_dataloader(5, num_epochs=None, window_row_groups=1) as loader,
    ):
        batches = iter(loader)
        next(batches)
        table = DeltaTable(tmp_path)
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        with pytest.raises(DatasetError, match=sentence):
            list(islice(batches, 100))
    with pytest.raises(DatasetError, match=sentence):
        converter.make_torch_dataloader(5).__enter__()
    assert len(rows_of(tmp_path, ["id"])) == 40

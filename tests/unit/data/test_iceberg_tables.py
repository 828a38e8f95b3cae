"""Iceberg tables are read in place: one snapshot, without its deleted rows, as pyiceberg reads it.

Arrow 14 reads such tables; pyiceberg writes them with later ones alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_delta_tables import rows_of

from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.dataset.lake import iceberg
from sparkdl_runner.data.dataset.lake.iceberg import FOLDER
from sparkdl_runner.tensors.arrays import is_readable

pytestmark = pytest.mark.skipif(
    int(pa.__version__.partition(".")[0]) < 17, reason="pyiceberg writes by Arrow 17 or later"
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    from pyiceberg.catalog.sql import SqlCatalog

    place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    found = SqlCatalog("here", **place)
    found.create_namespace("db")
    yield found
    found.close()


def numbers(first: int, last: int) -> pa.Table:
    ids = range(first, last)
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "place": ["a b/c" if i % 2 else "x" for i in ids],
            "day": [date(2024, 1, 1 + i % 3) for i in ids],
        }
    )


def test_a_snapshot_of_a_table_that_grew_and_changed(catalog: Any) -> None:
    from pyiceberg.types import LongType, StringType

    table = catalog.create_table("db.grown", schema=numbers(0, 1).schema)
    with table.update_spec() as spec:
        spec.add_identity("place")
    table.append(numbers(0, 40))
    first = table.current_snapshot().snapshot_id
    with table.update_schema() as change:
        change.update_column("id", LongType())
        change.rename_column("id", "number")
        change.add_column("note", StringType())
    more = numbers(40, 44).rename_columns(["number", "place", "day"])
    more = more.set_column(0, "number", pa.array(range(40, 44)))
    table.append(more.append_column("note", pa.array(list("abcd"))))
    place = table.location()
    fill = {"loading": {"nulls": "fill", "fill_value": -1}}
    expected = [(i, "a b/c" if i % 2 else "x", "") for i in range(40)]
    expected += [(i, "a b/c" if i % 2 else "x", "abcd"[i - 40]) for i in range(40, 44)]
    assert rows_of(place, ["number", "place", "note"], **fill) == expected
    assert rows_of(table.metadata_location, ["number"], **fill) == [(i,) for i in range(44)]
    assert rows_of(place, ["id"], snapshot_id=first) == [(i,) for i in range(40)]
    filters = [("place", "=", "x"), ("number", "<", 10)]
    assert len(make_spark_converter(place, filters=filters, columns=["number"])) == 5
    with pytest.raises(DatasetError, match=f"has no snapshot 5; it has {first}, "):
        make_spark_converter(place, snapshot_id=5)
    with pytest.raises(TypeError, match="Iceberg table: give snapshot_id="):
        make_spark_converter(place, version=5)
    inside = f"{place}/data"
    with pytest.raises(
        DatasetError, match=r"part of .*/grown, which is an Iceberg table.*path /.*/grown,"
    ):
        make_spark_converter(inside)


def with_deletes(table: Any, content: str, schema: pa.Schema, rows: list[Any], **more: Any) -> Any:
    """Commits a file of deletes, which pyiceberg reads and does not write."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    path = f"{table.location()}/data/deletes-{content}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path.removeprefix("file://"))
    file = DataFile.from_args(
        content=DataFileContent[content],
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        **more,
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as change:
        update = _FastAppendFiles(Operation.DELETE, change, table.io)
        update.append_data_file(file)
        _as_deletes(update)
        update.commit()
    return table


def _as_deletes(update: Any) -> None:
    """Writes the manifest of that commit as one of deletes."""
    from pyiceberg.manifest import ManifestContent, ManifestWriterV2

    class Writer(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    update.new_manifest_writer = lambda spec: Writer(
        spec,
        update._transaction.table_metadata.schema(),
        update.new_manifest_output(),
        update.snapshot_id,
        "null",
    )


def test_files_without_wanted_rows_by_the_manifests_are_not_opened(catalog: Any) -> None:
    table = catalog.create_table("db.parts", schema=numbers(0, 1).schema)
    table.append(numbers(0, 10))
    [old] = Path(table.location().removeprefix("file://")).rglob("*.parquet")
    table.append(numbers(10, 20))
    old.unlink()  # Whoever opens it is told that it is gone.
    place, late = table.location(), [("day", ">", date(2024, 1, 3))]
    filters = [[("id", ">=", 10), ("id", "<", 15)], late]
    assert rows_of(place, ["id"], filters=filters) == [(i,) for i in range(10, 15)]
    with pytest.raises(DatasetError, match=r"\.parquet is not a file"):
        make_spark_converter(place, filters=[("id", ">=", 9)])


def test_rows_under_position_deletes_are_not_there(catalog: Any) -> None:
    table = catalog.create_table("db.deleted", schema=numbers(0, 1).schema)
    table.append(numbers(0, 50))
    [data] = table.scan().plan_files()
    schema = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
    gone = [0, 7, 49]
    rows = [{"file_path": data.file.file_path, "pos": position} for position in gone]
    with_deletes(table, "POSITION_DELETES", schema, rows)
    assert table.scan().to_arrow().num_rows == 47  # pyiceberg's own reader agrees.
    assert rows_of(table.location(), ["id"]) == [(i,) for i in range(50) if i not in gone]


def test_equality_deletes_are_refused_in_a_sentence(catalog: Any) -> None:
    table = catalog.create_table("db.equal", schema=numbers(0, 1).schema)
    table.append(numbers(0, 50))
    schema = pa.schema([pa.field("id", pa.int32(), metadata={b"PARQUET:field_id": b"1"})])
    with_deletes(table, "EQUALITY_DELETES", schema, [{"id": 3}], equality_ids=[1])
    sentence = r"equality deletes.*spark\.read\.format\('iceberg'\).*rewrite_data_files"
    with pytest.raises(DatasetError, match=sentence):
        make_spark_converter(table.location())


def test_an_expired_snapshot_is_told(catalog: Any) -> None:
    table = catalog.create_table("db.expired", schema=numbers(0, 1).schema)
    table.append(numbers(0, 50))
    converter = make_spark_converter(table.location())
    [task] = table.scan().plan_files()
    Path(task.file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(DatasetError, match=r"snapshot \d+ of the Iceberg .*expire_snapshots"):
        converter.make_torch_dataloader(5).__enter__()


def test_two_newest_states_are_for_the_catalog_to_tell(catalog: Any) -> None:
    table = catalog.create_table("db.forked", schema=numbers(0, 1).schema)
    table.append(numbers(0, 5))
    metadata = Path(table.metadata_location.removeprefix("file://"))
    other = metadata.with_name(metadata.name.partition("-")[0] + "-lost.metadata.json")
    other.write_text(json.dumps({}))
    with pytest.raises(DatasetError, match="that its catalog names"):
        make_spark_converter(table.location())
    assert len(make_spark_converter(table.metadata_location)) == 5


@pytest.mark.parametrize("name", ["a b", "a%20b", "a#b", "a?b", "é"])
def test_folders_of_any_name(tmp_path: Path, name: str) -> None:
    """pyiceberg's own files end at a # or ?; Spark's do not."""
    from pyiceberg.catalog.sql import SqlCatalog

    place = f"file://{tmp_path}/{name}/t"
    files = "sparkdl_runner.data.dataset.lake.iceberg_files.LocalFileIO"
    properties = {"py-io-impl": files, FOLDER: place}
    catalog = SqlCatalog("here", uri="sqlite:///:memory:", **properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.named", schema=numbers(0, 1).schema, location=place)
    table.append(numbers(0, 3))
    catalog.close()
    assert rows_of(place, ["id"]) == [(0,), (1,), (2,)]


def test_a_table_without_a_snapshot(catalog: Any) -> None:
    table = catalog.create_table("db.empty", schema=numbers(0, 1).schema)
    converter = make_spark_converter(table.location())
    assert len(converter) == 0
    assert converter.open().manifest.schema.names == ["id", "place", "day"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("a", pa.string())]),
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.struct([("a", pa.int64())])),
    ],
)
def test_a_column_that_no_loader_reads_is_left_out(
    catalog: Any, kind: pa.DataType, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.table({"id": [1, 2], "text": ["ab" * 900] * 2, "other": pa.array([None] * 2, kind)})
    table = catalog.create_table("db.other", schema=rows.schema)
    table.append(rows)
    converter = make_spark_converter(table.location())
    assert converter.open().manifest.column("text").most_row_bytes == 1_800
    assert rows_of(table.location(), ["id"]) == [(1,), (2,)]
    assert caplog.text.count("torch has no such types: 'other'") == 1
    with pytest.raises(DatasetError, match="column 'other' is"):
        rows_of(table.location(), ["id"], loading={"columns": ["id", "other"]})


def test_uuids_are_16_bytes(catalog: Any) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, UUIDType

    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "key", UUIDType()))
    table = catalog.create_table("db.uuids", schema=schema)
    keys = [bytes(range(16)), bytes(16)]
    kind = table.schema().as_arrow().field("key").type
    table.append(pa.table({"id": [1, 2], "key": pa.array(keys, pa.binary(16)).cast(kind)}))
    assert rows_of(table.location(), ["id", "key"]) == [(1, keys[0]), (2, keys[1])]
    assert rows_of(table.location(), ["id"], filters=[("key", "=", keys[1])]) == [(2,)]


def test_a_type_that_this_arrow_lacks_is_none_that_a_loader_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyiceberg.types import ListType, NestedField, UUIDType

    def lacks(*arguments: Any, **more: Any) -> None:
        raise AttributeError("module 'pyarrow' has no attribute 'uuid'")

    column = NestedField(1, "keys", ListType(2, UUIDType()))
    assert not is_readable(iceberg._type_of(column))
    monkeypatch.setattr("pyiceberg.io.pyarrow.schema_to_pyarrow", lacks)
    assert not is_readable(iceberg._type_of(column))


def test_a_moved_table_is_read_where_it_is_and_a_link_to_one(catalog: Any, tmp_path: Path) -> None:
    table = catalog.create_table("db.moved", schema=numbers(0, 1).schema)
    table.append(numbers(0, 9))
    table.delete("id < 3")
    there, link = tmp_path / "there", tmp_path / "link"
    Path(table.location().removeprefix("file://")).rename(there)
    link.symlink_to(there)
    for place in (there, link):
        assert rows_of(str(place), ["id"]) == [(i,) for i in range(3, 9)]


def test_metadata_out_of_the_tables_folder_is_not_read(catalog: Any, tmp_path: Path) -> None:
    table = catalog.create_table("db.leading", schema=numbers(0, 1).schema)
    table.append(numbers(0, 9))
    metadata = Path(table.metadata_location.removeprefix("file://"))
    listed = json.loads(metadata.read_text())
    manifests = Path(listed["snapshots"][-1]["manifest-list"].removeprefix("file://"))
    private = manifests.rename(tmp_path / "private.avro")
    for path in (f"file://{private}", f"file://{metadata.parent}/../../../../{private.name}"):
        listed["snapshots"][-1]["manifest-list"] = path
        metadata.write_text(json.dumps(listed))
        with pytest.raises(DatasetError, match=r"private\.avro, which is not in its folder"):
            make_spark_converter(str(metadata))

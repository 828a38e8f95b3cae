"""Delta tables whose features, names or paths delta-rs does not read as Spark does."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64
from test_delta_tables import added, deletion_vector, log, protocol, rows_of

from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.dataset.lake import deletion_vectors
from sparkdl_runner.data.read.costs import row_bytes

_WIDENED = Path(__file__).parent / "delta-widened.tar.gz"
"""Four tables whose types Spark widened, each with the rows that Spark reads as Parquet."""


@pytest.fixture(scope="module")
def widened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("widened")
    with tarfile.open(_WIDENED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize(
    "name", ["d_widening", "d_widening2", "d_widen_int_double", "d_widening_partition"]
)
def test_types_that_spark_widened(widened: Path, name: str) -> None:
    spark = ds.dataset(widened / name / "rows", format="parquet").to_table()
    numbers = [
        column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column
        for column in spark.columns
    ]
    expected = sorted(zip(*(column.to_pylist() for column in numbers), strict=True))
    loading = {"loading": {"decimals": "float64"}}
    assert rows_of(widened / name / "table", spark.column_names, **loading) == expected
    some = make_spark_converter(widened / name / "table", filters=[("id", ">=", 900)])
    assert len(some) == sum(i >= 900 for i in spark["id"].to_pylist())


@pytest.mark.parametrize("feature", ["typeWidening-preview", "vacuumProtocolCheck", "variantType"])
def test_features_that_delta_rs_does_not_know(tmp_path: Path, feature: str) -> None:
    write_deltalake(tmp_path, pa.table({"id": range(5)}))
    pq.write_table(pa.table({"id": range(5, 9)}), tmp_path / "p.parquet")
    file = added(tmp_path, "p.parquet", deletionVector=deletion_vector([0, 2]))
    log(tmp_path, 1, [protocol(feature, "deletionVectors"), file])
    assert rows_of(tmp_path, ["id"]) == [(i,) for i in (0, 1, 2, 3, 4, 6, 8)]
    log(tmp_path, 2, [protocol(feature, "wormholes")])
    with pytest.raises(DatasetError, match=r"[Ww]ormholes"):
        make_spark_converter(tmp_path)


def vector_file(table: Path, *vectors: list[int]) -> list[dict[str, Any]]:
    """Writes vectors as Spark does, in one file, and returns their descriptors."""
    inline = [deletion_vector(rows) for rows in vectors]
    content, found = b"\x01", []
    for one, rows in zip(inline, vectors, strict=True):
        data = (1681511377).to_bytes(4, "little") + BitMap64(rows).serialize()
        crc = deletion_vectors.zlib.crc32(data).to_bytes(4, "big")
        place = {"storageType": "p", "pathOrInlineDv": "a%20b.bin", "offset": len(content)}
        found.append({**one, **place})
        content += len(data).to_bytes(4, "big") + data + crc
    (table / "a b.bin").write_bytes(content)
    return found


def test_the_newest_vector_of_a_file_counts_also_before_a_checkpoint(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": pa.array([], pa.int64())}))
    for name, first in (("p", 0), ("q", 10), ("r", 20)):
        pq.write_table(pa.table({"id": range(first, first + 5)}), tmp_path / f"{name}.parquet")
    one, two = vector_file(tmp_path, [1], [1, 3])
    file = lambda name, **more: added(tmp_path, f"{name}.parquet", **more)  # noqa: E731
    log(tmp_path, 1, [protocol("deletionVectors"), file("p", deletionVector=one), file("q")])
    removed = {"path": "p.parquet", "deletionTimestamp": 0, "dataChange": True}
    removed["deletionVector"] = one
    log(tmp_path, 2, [file("p", deletionVector=two), {"remove": removed}])
    DeltaTable(tmp_path).create_checkpoint()
    for version in (0, 1, 2):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    log(tmp_path, 3, [file("r", deletionVector=deletion_vector([0]))])
    expected = [0, 2, 4, 10, 11, 12, 13, 14]
    assert rows_of(tmp_path, ["id"], version=2) == [(i,) for i in expected]
    assert rows_of(tmp_path, ["id"]) == [(i,) for i in [*expected, 21, 22, 23, 24]]
    (tmp_path / "a b.bin").write_bytes(b"\x01" + bytes(200))
    with pytest.raises(DatasetError, match=r"a b\.bin does not hold the deletion vector that the"):
        make_spark_converter(tmp_path)


def test_a_vector_of_more_rows_than_its_file_has(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": range(5)}))
    pq.write_table(pa.table({"id": range(5)}), tmp_path / "p.parquet")
    stats = json.dumps({"numRecords": 5})
    file = added(tmp_path, "p.parquet", stats=stats, deletionVector=deletion_vector(range(9)))
    log(tmp_path, 1, [protocol("deletionVectors"), file])
    with pytest.raises(DatasetError, match=r"deletes 9 rows, .* of a file of 5 rows"):
        make_spark_converter(tmp_path)


@pytest.mark.parametrize("name", ["a b", "a%20b", "a%25b", "a#b", "a?b", "é ü", "100%", "a\\b"])
def test_folders_of_any_name(tmp_path: Path, name: str) -> None:
    """delta-rs would read the log of another folder, of the decoded name."""
    for place, first in (("table", 0), ("a b", 90), ("a%b", 90)):
        rows = pa.table({"id": range(first, first + 2), "p": ["x y", "a%20b/é#?"]})
        write_deltalake(tmp_path / "elsewhere" / place, rows, partition_by=["p"])
    table = tmp_path / name
    (tmp_path / "elsewhere" / "table").rename(table)
    (tmp_path / "elsewhere").rename(tmp_path / "beside")
    for url in (table, f"file://{table}"):
        assert rows_of(url, ["id", "p"]) == [(0, "x y"), (1, "a%20b/é#?")]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("../private/x.parquet", r"\.\./private/x\.parquet, which leads out of its folder: "),
        ("a/%2E%2E/../x.parquet", r"a/\.\./\.\./x\.parquet, which leads out of its folder: "),
        ("/etc/x.parquet", "/etc/x.parquet, which is not in its folder, as a shallow clone does"),
        ("file:/other/t/p%20q.parquet", r"file:/other/t/p q.*shallow clone does: pass spark"),
        ("s3a://other/p.parquet", "s3a://other/p.parquet, .*shallow clone does"),
    ],
)
def test_files_out_of_the_folder(tmp_path: Path, path: str, sentence: str) -> None:
    table = tmp_path / "table"
    (tmp_path / "private").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "private" / "x.parquet")
    write_deltalake(table, pa.table({"id": [1]}))
    add = {"path": path, "size": 1, "modificationTime": 0, "dataChange": True}
    log(table, 1, [{"add": {**add, "partitionValues": {}}}])
    with pytest.raises(DatasetError, match=f"version 1 of the Delta table .* lists {sentence}"):
        make_spark_converter(table)


def test_a_whole_path_into_the_folder_is_read(tmp_path: Path) -> None:
    table = tmp_path / "a table"
    write_deltalake(table, pa.table({"id": [1]}))
    pq.write_table(pa.table({"id": [2]}), table / "p q.parquet")
    add = added(table, "p q.parquet")["add"]
    log(table, 1, [{"add": {**add, "path": f"file:{quote(str(table))}/p%20q.parquet"}}])
    assert rows_of(table, ["id"]) == [(1,), (2,)]


def test_after_the_delete_and_update_of_delta_rs(tmp_path: Path) -> None:
    """It writes texts as views, which old Arrow takes for a broken footer."""
    write_deltalake(tmp_path, pa.table({"id": range(6), "text": list("abcdef")}))
    DeltaTable(tmp_path).delete("id < 2")
    DeltaTable(tmp_path).update(updates={"text": "'new'"}, predicate="id = 3")
    expected = [(2, "c"), (3, "new"), (4, "e"), (5, "f")]
    assert rows_of(tmp_path, ["id", "text"]) == expected
    assert rows_of(tmp_path, ["id"], filters=[("text", "=", "new")]) == [(3,)]


def test_a_column_that_cannot_be_read_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_deltalake(tmp_path, pa.table({"id": [1], "size": pa.array([1], pa.int32())}))
    pq.write_table(pa.table({"id": [2], "size": ["large"]}), tmp_path / "p.parquet")
    log(tmp_path, 1, [added(tmp_path, "p.parquet")])
    assert rows_of(tmp_path, ["id"]) == [(1,), (2,)]
    assert "is read without 'size': column 'size' is string in " in caplog.text
    assert "columns=" in caplog.text
    for asked in ({"columns": ["id", "size"]}, {"filters": [("size", "<", 3)]}):
        with pytest.raises(DatasetError, match=r"'size' is string in .* and int32 in the table"):
            make_spark_converter(tmp_path, **asked)


def test_sizes_are_those_of_decoded_rows(tmp_path: Path) -> None:
    """As of the same files in a plain folder, also under filters, and in a partition column."""
    texts = [chr(97 + i % 20) * 2_000 for i in range(1_000)]
    words = pa.array([["word" * 50] * (i % 3) for i in range(1_000)], pa.list_(pa.string()))
    for part in ("x" * 30, "y" * 10):
        table = pa.table({"id": range(1_000), "text": texts, "words": words})
        table = table.append_column("part", pa.array([part] * 1_000))
        write_deltalake(tmp_path, table, mode="append", partition_by=["part"])
    sizes = {
        one.name: (one.decoded_bytes, one.group_row_bytes, one.most_row_bytes)
        for one in make_spark_converter(tmp_path).open().manifest.columns
    }
    assert sizes == {
        "id": (None, None, None),
        "text": (4_000_000, 2_000, 2_000),
        "words": (2 * 999 * 200, 200, 400),
        "part": (40_000, 30, None),
    }
    some = make_spark_converter(tmp_path, columns=["text"], filters=[("id", "<", 100)])
    [text] = some.open().manifest.columns
    assert (text.decoded_bytes, text.group_row_bytes) == (200 * 2_000, 2_000)
    assert row_bytes(some.open().manifest) >= 2_000


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.struct([("a", pa.int64())])),
    ],
)
def test_a_column_that_no_loader_reads_is_left_out(
    tmp_path: Path, kind: pa.DataType, caplog: pytest.LogCaptureFixture
) -> None:
    other = pa.array([None, None, None], kind)
    write_deltalake(tmp_path, pa.table({"id": [1, 2, 3], "other": other}))
    assert rows_of(tmp_path, ["id"]) == [(1,), (2,), (3,)]
    assert caplog.text.count("torch has no such types: 'other'") == 1
    assert "columns=[" in caplog.text
    assert len(make_spark_converter(tmp_path)) == 3  # Its nulls disturb nobody.
    with pytest.raises(DatasetError, match="column 'other' is"):
        rows_of(tmp_path, ["id"], loading={"columns": ["id", "other"]})


def test_a_table_without_rows(tmp_path: Path) -> None:
    schema = {"id": pa.array([], pa.int64()), "xs": pa.array([], pa.list_(pa.float32()))}
    write_deltalake(tmp_path, pa.table(schema))
    converter = make_spark_converter(tmp_path)
    assert len(converter) == 0
    assert converter.open().manifest.schema.names == ["id", "xs"]
    with converter.make_torch_dataloader(4, num_epochs=1) as loader:
        assert list(loader) == []
    with pytest.raises(DatasetError, match=r"no row that fulfils filters=.*'id', '<', 3"):
        make_spark_converter(tmp_path, filters=[("id", "<", 3)])

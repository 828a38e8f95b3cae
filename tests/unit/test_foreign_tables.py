"""Files and tables of other projects: how readings are compared, and what is no refusal."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foreign import table_rows, tables


@pytest.fixture
def folder(tmp_path):
    columns = {
        "x": pa.array([1, None, 3]),
        "text": pa.array(["a", None, ""]),
        "lists": pa.array([[1, 2], None, []]),
        "pairs": pa.array([[1, 2], None, [3, 4]]),
        "price": pa.array([None, 1, 2], pa.decimal128(9, 2)),
        "day": pa.array([0, -1, 2], pa.date32()),
        "time": pa.array([0, 5, 7], pa.time32("ms")),
    }
    (tmp_path / "one").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "one" / "a.parquet")
    return tmp_path


def test_a_file_is_equal_to_what_others_read(folder):
    assert tables._outcome("parquet", str(folder / "one"))[0] == "equal"


def test_one_value_that_differs_is_wrong(folder, monkeypatch):
    path = str(folder / "one")
    read = dict(table_rows.READERS["parquet"])
    other = read["pyarrow"](path, ["x", "text", "lists", "pairs", "price", "day", "time"])
    other["lists"] = [(1, 2), table_rows.NULL, (7,)]
    monkeypatch.setitem(table_rows.READERS, "parquet", {"pyarrow": lambda *_: other})
    how, words = tables._outcome("parquet", path)
    assert how == "wrong"
    assert "column lists, row 2: 'null' for (7,)" in words


def test_a_column_that_is_refused_by_name_leaves_the_others_equal(folder):
    columns = {"x": pa.array([1]), "pair": pa.array([{"a": 1}])}
    pq.write_table(pa.table(columns), folder / "one" / "a.parquet")
    how, words = tables._outcome("parquet", str(folder / "one"))
    assert how == "equal in part"
    assert "column pair: DatasetError: column 'pair'" in words


def test_an_error_that_is_not_ours_is_bare(folder, monkeypatch):
    def broken(source):
        return {}["x"]

    monkeypatch.setattr(tables, "ours", broken)
    assert tables._outcome("parquet", str(folder / "one"))[0] == "bare error"


def test_rows_of_a_table_may_come_in_any_order():
    mine, theirs = {"a": [1, 2], "b": ["x", "y"]}, {"b": ["y", "x"], "a": [2, 1]}
    assert tables.difference("delta", mine, theirs) is None
    assert tables.difference("parquet", mine, theirs) == "column a, row 0: 1 for 2"
    theirs["b"].reverse()
    assert "rows" in (tables.difference("delta", mine, theirs) or "")


def test_a_table_s_own_files_are_no_sources(folder):
    for name in ("delta/_delta_log", "delta/part", "ice/metadata"):
        (folder / name).mkdir(parents=True)
    for name in ("delta/part/b.parquet", "ice/metadata/v1.metadata.json", "c.parquet.encrypted"):
        (folder / name).touch()
    found = [(kind, path.name) for kind, path in tables.sources(folder)]
    assert found == [
        ("delta", "delta"),
        ("iceberg", "ice"),
        ("parquet", "c.parquet.encrypted"),
        ("parquet", "a.parquet"),
    ]

"""Folders that somebody else wrote are read in place only where their files are their rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from parquet_sets import numbered, one

from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME

PART = r"is a part of /.*/table, which is a Delta table"
STARTED = "_started_12"
COMMITTED = "_committed_12"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """``table/part-00000.parquet``, as Spark writes it, with what may lie beside."""
    folder = tmp_path / "table"
    one(folder, numbered(6))
    (folder / MANIFEST_NAME).unlink()
    for name in ("_SUCCESS", ".part-00000.parquet.crc", "README.md", STARTED):
        (folder / name).write_text("what is no Parquet file")
    (folder / COMMITTED).write_text(json.dumps({"added": ["part-00000.parquet"], "removed": []}))
    (folder / "metadata").mkdir()
    (folder / "metadata" / "columns.json").write_text("{}")
    return folder


def test_what_lies_beside_is_passed_over(table: Path) -> None:
    assert len(make_spark_converter(f"file://{table}")) == 6


def move(table: Path, name: str) -> None:
    (table / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(table / "part-00000.parquet", table / name)


def add(table: Path, name: str, content: str = "{}") -> None:
    (table / name).parent.mkdir(parents=True, exist_ok=True)
    (table / name).write_text(content)


def another(table: Path, name: str) -> None:
    (table / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(table / "part-00000.parquet", table / name)


@pytest.mark.parametrize(
    ("read", "change", "sentence"),
    [
        (".", lambda t: add(t, "_delta_log/0.json"), r"the Delta table .*format\('delta'\)"),
        (".", lambda t: add(t, ".hoodie/hoodie.properties"), r"table is a Hudi table.*'hudi'"),
        (".", lambda t: add(t, "metadata/v1.metadata.json"), r"The Iceberg table .*'iceberg'"),
        (".", lambda t: add(t, "_spark_metadata/0"), "table is the output of a streaming query"),
        ("..", lambda t: add(t, "_delta_log/0.json"), "holds a Delta table in table"),
        ("..", lambda t: add(t, "metadata/1.gz.metadata.json"), "an Iceberg table in table"),
        ("day=1", lambda t: [another(t, "day=1/a.parquet"), add(t, "_delta_log/0.json")], PART),
        ("data/a", lambda t: [another(t, "data/a/0.parquet"), add(t, "_delta_log/0.json")], PART),
        (".", lambda t: add(t, "_temporary/0/x"), r"holds the folder _temporary: .*rows may be"),
        (".", lambda t: (t / "_temporary").mkdir(), r"holds the folder _temporary"),
        (".", lambda t: (t / COMMITTED).unlink(), "holds _started_12 and no mark that this write"),
        (".", lambda t: add(t, COMMITTED, '{"removed": ["x"]}'), "overwritten on Databricks"),
        (".", lambda t: another(t, "000000_0"), "1 Parquet files whose names.*such as 000000_0"),
        (".", lambda t: move(t, "PART-0.PARQUET"), r"such as PART-0\.PARQUET: rename them"),
        (".", lambda t: another(t, "old/a.parquet"), "in the folder old, more of them"),
        (".", lambda t: another(t, "k=1/a.parquet"), r"partitioned by the names .*\(k=1\)"),
        ("part-00000.parquet", lambda t: None, "is a file, and no directory"),
    ],
)
def test_a_folder_whose_files_are_not_its_rows(table: Path, read, change, sentence: str) -> None:
    change(table)
    with pytest.raises(DatasetError, match=sentence):
        make_spark_converter(f"file://{(table / read).resolve()}")


def test_folders_of_files_alone_are_read_together(table: Path) -> None:
    another(table, "second/b.parquet")
    move(table, "first/a.parquet")
    assert len(make_spark_converter(f"file://{table}")) == 12

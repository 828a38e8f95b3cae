"""The files of a model that Spark Connect has written as rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from sparkdl_runner.estimator import spark_folder


def test_parts_become_files_again_in_the_folder_alone(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    rows = [("weights", 1, b"end"), ("../network.json", 0, b"{}")]
    for number, (name, part, content) in enumerate([*rows, ("weights", 0, b"begin ")]):
        table = pa.table({"name": [name], "part": [part], "content": [content]})
        pq.write_table(table, folder / f"part-{number}.parquet")
    spark_folder._unpack(folder)
    assert (folder / "weights").read_bytes() == b"begin end"
    assert (folder / "network.json").read_bytes() == b"{}"
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_a_folder_of_plain_files_stays_as_it_is(tmp_path):
    (tmp_path / "weights").write_bytes(b"1")
    spark_folder._unpack(tmp_path)
    assert (tmp_path / "weights").read_bytes() == b"1"

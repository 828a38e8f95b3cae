"""What the owner of a data set's folder can put there for whoever reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from parquet_sets import LOCAL, load, numbered, write_groups

from sparkdl_runner.data import DatasetError, make_spark_converter, sweep_leftovers
from sparkdl_runner.data.convert.replacing import SUBFOLDER_PREFIX, remove_abandoned
from sparkdl_runner.data.convert.replacing import replace as replace_in
from sparkdl_runner.data.dataset import manifest
from sparkdl_runner.data.dataset.checksum import crc32_from_sidecar
from sparkdl_runner.data.dataset.files import pack
from sparkdl_runner.data.dataset.foreign_folder import find_parquet
from sparkdl_runner.data.dataset.leftovers import MARKER_NAME, PREFIX, Owner
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME, Manifest


def pipe_in_place_of(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_groups(tmp_path / "data", numbered(10), [[5], [3, 2]])
    return tmp_path / "data"


def test_a_manifest_that_is_a_pipe(folder):
    pipe_in_place_of(folder / MANIFEST_NAME)
    with pytest.raises(DatasetError, match=r"cannot be a manifest: .* is a pipe"):
        make_spark_converter(f"file://{folder}")
    with pytest.raises(DatasetError, match=r"Cannot read .* is a pipe"):
        replace_in(LOCAL, str(folder), "app", lambda name: None)


def test_a_manifest_that_is_far_too_large(folder):
    with (folder / MANIFEST_NAME).open("r+b") as file:
        file.truncate(manifest.MOST_BYTES + 1)
    with pytest.raises(DatasetError, match="67,108,865 bytes, and at most 67,108,864 are read"):
        Manifest.read(LOCAL, str(folder))


def test_no_manifest_is_written_that_would_not_be_read(folder, monkeypatch):
    written = Manifest.read(LOCAL, str(folder))
    monkeypatch.setattr(manifest, "MOST_BYTES", 1000)
    with pytest.raises(DatasetError, match=r"2 files with 3 row groups, .* larger files"):
        written.write(LOCAL, str(folder))


@pytest.mark.parametrize("path", ["../secret.parquet", "/etc/passwd", "a/../../secret.parquet"])
def test_a_manifest_that_lists_what_is_elsewhere(folder, path):
    there = Manifest.read(LOCAL, str(folder))
    files = (there.files[0]._replace(path=path), *there.files[1:])
    replace(there, files=files).write(LOCAL, str(folder))
    with pytest.raises(DatasetError, match="which is not in its folder"):
        Manifest.read(LOCAL, str(folder))


def changed(change: Callable[[dict], None]) -> Callable[[dict], dict]:
    def apply(fields: dict) -> dict:
        change(fields)
        return fields

    return apply


def packed(*values: int, dtype: type = np.int64) -> str:
    return pack(np.array(values, dtype))


def names(joined: bytes) -> dict[str, object]:
    return {"paths": pack(np.frombuffer(joined, np.uint8)), "paths_bytes": len(joined)}


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: [fields],
        changed(lambda fields: fields["row_groups"].update(file=packed(0, 1, 2, dtype=np.int32))),
        changed(lambda fields: fields["row_groups"].update(file=packed(1, 0, 1, dtype=np.int32))),
        changed(lambda fields: fields["row_groups"].update(file=packed(-1, 0, 1, dtype=np.int32))),
        changed(lambda fields: fields["row_groups"].update(rows=packed(5, 3))),
        changed(lambda fields: fields["row_groups"].update(rows=packed(5, 3, -2))),
        changed(lambda fields: fields["row_groups"].update(rows=packed(2**62, 2**62, 2**62))),
        changed(lambda fields: fields["row_groups"].update(rows=[5, 3, 2])),
        changed(lambda fields: fields["row_groups"].update(count=2**50)),
        changed(lambda fields: fields["row_groups"].update(count=-1)),
        changed(lambda fields: fields["files"].update(size_bytes=packed(-1, 5))),
        changed(lambda fields: fields["files"].update(rows="no Base64")),
        changed(lambda fields: fields["files"].update(count=2**27)),
        changed(lambda fields: fields["files"].update(names(b"a.parquet"))),
        changed(lambda fields: fields["files"].update(names(b"a.parquet\0../b.parquet"))),
        changed(lambda fields: fields["files"].update(names(b"/a.parquet\0b.parquet"))),
        changed(lambda fields: fields["files"].update(names(b"a.parquet\0"))),
        changed(lambda fields: fields["files"].update(names(b"a.parquet\0\xff"))),
        changed(lambda fields: fields["columns"].pop()),
        changed(lambda fields: fields["columns"][0].update(list_lengths=3)),
        changed(lambda fields: fields.update(schema_base64="AAAA")),
        changed(lambda fields: fields.update(schema_base64="é")),
        changed(lambda fields: fields.pop("files")),
    ],
)
def test_a_manifest_of_impossible_values(folder, change):
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DatasetError, match=f"{MANIFEST_NAME}: it cannot be read"):
        Manifest.read(LOCAL, str(folder))


def test_a_file_that_becomes_a_pipe_after_the_check(folder):
    there = Manifest.read(LOCAL, str(folder))
    with load(folder, there, batch_size=5) as loader:
        pipe_in_place_of(folder / "part-00001.parquet")
        with pytest.raises(DatasetError, match=r"part-00001\.parquet.* is a pipe"):
            list(loader)


def test_markers_and_checksums_that_are_pipes_or_lies(tmp_path, folder):
    name = f"{PREFIX}x"
    marked = tmp_path / name
    marked.mkdir()
    gone = {**asdict(Owner.this_process(name, "app")), "started_ticks": 1}
    for lie in (
        {**gone, "pid": "../../tmp"},
        {**gone, "started_ticks": "1"},
        {**gone, "created_unix_seconds": None},
        [gone],
    ):
        (marked / MARKER_NAME).write_text(json.dumps(lie))
        assert sweep_leftovers(f"file://{tmp_path}") == []
    (marked / MARKER_NAME).write_text("[" * 10_000)
    assert sweep_leftovers(f"file://{tmp_path}") == []
    pipe_in_place_of(marked / MARKER_NAME)
    assert sweep_leftovers(f"file://{tmp_path}") == []
    (folder / f"{SUBFOLDER_PREFIX}y").mkdir()
    pipe_in_place_of(folder / f"{SUBFOLDER_PREFIX}y" / MARKER_NAME)
    remove_abandoned(LOCAL, str(folder))
    assert (folder / f"{SUBFOLDER_PREFIX}y").is_dir()
    pipe_in_place_of(folder / ".part-00000.parquet.crc")
    assert crc32_from_sidecar(LOCAL, str(folder / "part-00000.parquet"), 10) is None


def test_a_commit_of_databricks_that_cannot_be_looked_into(folder):
    (folder / "_committed_1").write_text("[" * 200_000)
    with pytest.raises(DatasetError, match=r"_committed_1, as Databricks .* nested too deeply"):
        find_parquet(LOCAL, str(folder), "file:///x")
    (folder / "_committed_1").write_text("of somebody else")
    assert len(find_parquet(LOCAL, str(folder), "file:///x")) == 2

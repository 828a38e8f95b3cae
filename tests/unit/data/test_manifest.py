"""The manifest says what the files hold, and comes back as it was written."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from parquet_sets import LOCAL, numbered, one, write_groups

from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.files import Files
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.row_groups import RowGroups
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    written = write_groups(tmp_path, numbered(60), [[20, 10], [], [30]])
    read = Manifest.read(LOCAL, str(tmp_path))
    assert read.files == written.files
    assert read.columns == written.columns
    assert read.schema == written.schema == numbered(1).schema
    assert read.fingerprint == written.fingerprint
    assert read.rows == 60
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.parquet"))]
    assert [file.size_bytes for file in read.files] == sizes
    for name in ("file", "index_in_file", "rows", "size_bytes"):
        assert np.array_equal(getattr(read.row_groups, name), getattr(written.row_groups, name))
        assert getattr(read.row_groups, name).dtype == getattr(written.row_groups, name).dtype
    assert read.row_groups.file.tolist() == [0, 0, 2]
    assert read.row_groups.index_in_file.tolist() == [0, 1, 0]
    VerifiedFiles(Dataset(read, LOCAL, str(tmp_path))).check_all()


def test_it_is_small_and_names_no_place(tmp_path: Path) -> None:
    manifest = one(tmp_path, numbered(30))
    text = json.dumps(manifest.to_json())
    assert str(tmp_path) not in text
    assert len(text) < 3_000


def test_another_content_has_another_fingerprint(tmp_path: Path) -> None:
    first = one(tmp_path / "a", numbered(30))
    assert one(tmp_path / "b", numbered(30)).fingerprint == first.fingerprint
    assert one(tmp_path / "c", numbered(31)).fingerprint != first.fingerprint
    assert one(tmp_path / "d", numbered(30), 10).fingerprint != first.fingerprint


def test_equal_content_has_one_fingerprint_whatever_its_files_are_called(tmp_path: Path) -> None:
    first = write_groups(tmp_path / "a", numbered(30), [[20, 10]])
    (again,) = (file._replace(path="b.parquet", footer_crc32=1) for file in first.files)
    digest = "0123456789abcdef"
    known = replace(first, content_digest=digest)
    assert replace(known, files=(again,)).fingerprint == known.fingerprint
    assert replace(known, content_digest="f" * 16).fingerprint != known.fingerprint
    other_groups = write_groups(tmp_path / "b", numbered(30), [[10, 20]])
    assert replace(other_groups, content_digest=digest).fingerprint != known.fingerprint
    known.write(LOCAL, str(tmp_path / "a"))
    assert Manifest.read(LOCAL, str(tmp_path / "a")).fingerprint == known.fingerprint


def test_it_is_written_where_a_link_leads(tmp_path: Path) -> None:
    manifest = one(tmp_path / "a", numbered(30))
    (tmp_path / "a" / "_manifest.json").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    manifest.write(LOCAL, str(tmp_path / "link"))
    assert Manifest.read(LOCAL, str(tmp_path / "a")).fingerprint == manifest.fingerprint


def test_a_hundred_thousand_files_are_small_and_read_at_once(tmp_path: Path) -> None:
    few = write_groups(tmp_path, numbered(6), [[2, 1], [3]])
    random = np.random.default_rng(0)
    count = 100_000
    names = (f"part-{number:05}-5f1c2a9e-8e0f-4a56-9d5f-c000.parquet" for number in range(count))
    numbers = {
        "size_bytes": random.integers(30_000_000, 31_000_000, count),
        "rows": np.full(count, 1_000),
        "footer_crc32": random.integers(0, 1 << 32, count),
        "modified_ns": 1_700_000_000_000_000_000 + random.integers(0, 1 << 40, count),
        "crc32": random.integers(0, 1 << 32, count),
    }
    files = Files("\0".join(names).encode(), numbers)
    groups = RowGroups(
        file=np.arange(count, dtype=np.int32),
        index_in_file=np.zeros(count, dtype=np.int32),
        rows=numbers["rows"],
        size_bytes=numbers["size_bytes"],
    )
    sizes = random.integers(900, 1_100, count)
    large = replace(few, files=files, row_groups=groups, footer_sizes=sizes)
    large.write(LOCAL, str(tmp_path))
    assert (tmp_path / "_manifest.json").stat().st_size < 4_000_000
    tracemalloc.start()
    read = Manifest.read(LOCAL, str(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20
    assert read.files[0] == files[0]
    assert read.files[-1] == files[-1]
    again = pickle.loads(pickle.dumps(read))
    assert again.digest == read.digest
    assert again.files[77_777] == files[77_777]


def test_nulls_and_lengths_are_counted_where_nobody_says(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": [1, None, 3, None],
            "fixed": [[1, 2], [3, 4], [5, 6], [7, 8]],
            "ragged": [[1], [], None, [1, None]],
            "nested": [[[1], [2]], [[3], [4]], [[5], [6]], [[7], [8]]],
            "half": [[[1], [2, 3]], [[3], [4]], [[5], [6]], [[7], [8]]],
            "nothing": pa.array([None] * 4, pa.list_(pa.int64())),
        }
    )
    columns = {column.name: column for column in one(tmp_path, table).columns}
    assert columns["n"].null_count == 2
    assert columns["n"].list_lengths == ()
    assert columns["fixed"].list_lengths == (2,)
    assert columns["fixed"].null_count == 0
    assert columns["ragged"].list_lengths == (None,)
    assert columns["ragged"].null_count == 2
    assert columns["nested"].list_lengths == (2, 1)
    assert columns["half"].list_lengths == (2, None)
    assert columns["nothing"].list_lengths == (0,)
    assert columns["nothing"].null_count == 4


def test_what_the_caller_knows_is_taken(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1, 2], [3, 4]], "y": [1, 2]}), tmp_path / "0.parquet")
    manifest = describe_parquet(
        LOCAL,
        str(tmp_path),
        ["0.parquet"],
        null_counts={"x": 0, "y": 7},
        list_lengths={"x": [2]},
    )
    assert manifest.column("x").list_lengths == (2,)
    assert manifest.column("y").null_count == 7


def test_100_000_row_groups_cost_little() -> None:
    from sparkdl_runner.data.dataset.row_groups import RowGroups

    groups = RowGroups.of([100] * 1000, [1000] * 100_000, [64_000] * 100_000)
    assert len(groups) == 100_000
    assert sum(getattr(groups, name).nbytes for name in vars(groups)) < 3_000_000

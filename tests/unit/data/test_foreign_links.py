"""A link in a data set's folder leads out of it only if its reader, or root, has made it."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from parquet_sets import numbered, write_groups

from sparkdl_runner.data import DatasetError, make_spark_converter

SOMEBODY = 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of Parquet files that only this user may read."""
    write_groups(tmp_path / "private", numbered(3), [[3]])
    (tmp_path / "private").chmod(0o700)
    return tmp_path / "private"


def link(path: Path, target: str | Path, owner: int = SOMEBODY) -> None:
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    os.lchown(path, owner, owner)


@as_root
@pytest.mark.parametrize("way", ["{private}", "../private"])
def test_anothers_link_to_a_file_elsewhere_is_refused(
    tmp_path: Path, private: Path, way: str
) -> None:
    write_groups(tmp_path / "shared", numbered(3), [[3]])
    (tmp_path / "shared" / "_manifest.json").unlink()
    link(tmp_path / "shared" / "more.parquet", f"{way.format(private=private)}/part-00000.parquet")
    with pytest.raises(DatasetError, match=r"shared/more\.parquet leads out .* \(uid 65533\)"):
        make_spark_converter(tmp_path / "shared")


@as_root
def test_it_is_refused_behind_a_link_of_our_own(tmp_path: Path, private: Path) -> None:
    link(tmp_path / "theirs" / "a.parquet", private / "part-00000.parquet")
    link(tmp_path / "shared" / "a.parquet", "../theirs/./a.parquet", os.geteuid())
    with pytest.raises(DatasetError, match=r"by .*/theirs/a\.parquet, a link"):
        make_spark_converter(tmp_path / "shared")


@as_root
def test_of_a_table_a_folder_of_a_partition_may_not_be_one(tmp_path: Path) -> None:
    table = tmp_path / "table"
    rows = pa.table({"id": [1, 2], "day": ["a", "b"]})
    write_deltalake(table, rows, partition_by=["day"])
    (table / "day=b").rename(tmp_path / "elsewhere")
    link(table / "day=b", tmp_path / "elsewhere", os.geteuid())
    assert len(make_spark_converter(table)) == 2
    os.lchown(table / "day=b", SOMEBODY, SOMEBODY)
    with pytest.raises(DatasetError, match=r"leads out of its folder by .*/day=b, a link"):
        make_spark_converter(table)


def test_our_own_links_are_followed(tmp_path: Path, private: Path) -> None:
    link(tmp_path / "shared" / "a.parquet", "../private/part-00000.parquet", os.geteuid())
    link(tmp_path / "named", "shared", os.geteuid())
    assert len(make_spark_converter(tmp_path / "named")) == 3


@as_root
def test_anothers_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    write_groups(tmp_path / "shared", numbered(3), [[3]])
    (tmp_path / "shared" / "_manifest.json").unlink()
    link(tmp_path / "shared" / "b.parquet", "part-00000.parquet")
    assert len(make_spark_converter(tmp_path / "shared")) == 6

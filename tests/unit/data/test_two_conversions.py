"""A converter that was made of a path, or shares its files with another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from parquet_sets import numbered, write_groups

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter
from sparkdl_runner.data.convert.cache import _is_there
from sparkdl_runner.data.convert.split import _when_all_did
from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME


def test_a_converter_of_a_path_knows_its_files(tmp_path: Path) -> None:
    write_groups(tmp_path, numbered(6), [[3], [3]])
    converter = make_spark_converter(tmp_path.as_uri())
    assert converter.file_urls == [f"{tmp_path.as_uri()}/part-0000{n}.parquet" for n in (0, 1)]


def test_a_converter_without_a_list_of_files_reads_it_in_the_manifest(tmp_path: Path) -> None:
    write_groups(tmp_path, numbered(3), [[3]])
    converter = SparkDatasetConverter(tmp_path.as_uri(), None, 3, delete=lambda: None)
    assert converter.file_urls == [f"{tmp_path.as_uri()}/part-00000.parquet"]
    assert _is_there(converter, None) is True
    (tmp_path / "part-00000.parquet").unlink()
    (tmp_path / MANIFEST_NAME).unlink()
    assert _is_there(converter, None) is False


def test_files_of_two_go_with_the_last_of_them() -> None:
    deleted = []
    first, second = _when_all_did(lambda: deleted.append("all"), 2)
    first()
    first()
    assert deleted == []
    second()
    assert deleted == ["all"]


def test_a_number_may_be_either_end_of_its_range() -> None:
    assert [whole_number("seed", n, least=0, most=5) for n in (None, 0, 5)] == [None, 0, 5]
    for number, words in ((-1, "expected 0 or more"), (6, "expected 0 to 5")):
        with pytest.raises(ValueError, match=f"seed is {number}; {words}"):
            whole_number("seed", number, least=0, most=5)

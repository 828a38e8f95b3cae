from __future__ import annotations

import sys
from types import ModuleType

import pytest

from sparkdl_runner.launch.worker import spark_files


class SparkFiles:
    """Of pyspark, as far as it matters here."""

    _sc = None
    _is_running_on_worker = False

    @classmethod
    def getRootDirectory(cls):  # noqa: N802
        assert cls._sc or cls._is_running_on_worker
        return "spark's own"


@pytest.fixture
def files(monkeypatch):
    """The class, in either of its homes, in a rank that has imported pyspark."""
    kind = type("SparkFiles", (SparkFiles,), {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for home in ("pyspark.core.files", "pyspark.files"):
        module = ModuleType(home)
        module.SparkFiles = kind
        monkeypatch.setitem(sys.modules, home, module)
    return kind


def test_a_rank_is_told_the_folder(files, monkeypatch):
    monkeypatch.setenv(spark_files.FOLDER, "/files")
    spark_files.make_findable()
    assert files.getRootDirectory() == "/files"


def test_a_spark_of_the_ranks_own_comes_first(files, monkeypatch):
    monkeypatch.setenv(spark_files.FOLDER, "/files")
    spark_files.make_findable()
    files._sc = "a context"
    assert files.getRootDirectory() == "spark's own"


def test_without_a_folder_nothing_changes(files, monkeypatch):
    monkeypatch.delenv(spark_files.FOLDER, raising=False)
    spark_files.make_findable()
    assert "getRootDirectory" not in vars(files)

"""As what a source is read, where its settings do not say it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.spark import source, storage
from sparkdl_runner.jobs.spark.source import Source


class Reader:
    """Spark's, as far as it is asked. What it loads is the format that it was told."""

    @property
    def read(self) -> Reader:
        return self

    def format(self, name: str) -> Reader:
        self.name = name
        return self

    def options(self, **_: object) -> Reader:
        return self

    def load(self, path: str) -> str:
        return self.name


@pytest.mark.parametrize(
    ("name", "is_folder", "given", "expected"),
    [
        ("table", True, {}, "delta"),
        ("table", True, {"format": "parquet"}, "parquet"),
        ("table.csv", True, {}, "csv"),
        ("one.parquet", False, {}, "parquet"),
    ],
)
def test_a_folder_with_a_log_is_a_table_of_delta(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_folder: bool,
    given: dict[str, Any],
    expected: str,
) -> None:
    place = tmp_path / name
    (place / "_delta_log").mkdir(parents=True) if is_folder else place.touch()
    monkeypatch.setattr(storage, "exists", lambda spark, path: os.path.exists(path))
    monkeypatch.setattr(source, "_is_file", lambda path, spark: os.path.isfile(path))
    asked = load(Source, None, {"path": str(place), **given})
    assert asked._open(Reader()) == expected

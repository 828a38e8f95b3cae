"""A cache directory of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdl_runner.data import SparkDatasetConverter


@pytest.fixture
def cache_dir(spark, tmp_path) -> Iterator[Path]:
    """The parent cache directory of the session for the length of one test."""
    path = tmp_path / "cache"
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{path}")
    yield path
    spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)

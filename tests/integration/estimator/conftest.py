"""What the tests of estimators share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(spark, tmp_path) -> Path:
    """The folder of conversions, for a test of its own."""
    setting = "petastorm.spark.converter.parentCacheDirUrl"
    spark.conf.set(setting, tmp_path.as_uri())
    yield tmp_path
    spark.conf.unset(setting)

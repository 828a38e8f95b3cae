"""``shuffle_seed``: Spark writes the rows in random order, and says so in the manifest."""

from __future__ import annotations

import numpy as np
import pytest

from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cache_dir")]
ROWS = 20_000


def rows_of(converter: SparkDatasetConverter) -> list[int]:
    """The ids in the order of the files."""
    with converter.make_torch_dataloader(ROWS, num_epochs=1, shuffle=False) as loader:
        return [int(row) for batch in loader for row in batch["id"]]


@pytest.fixture
def table(spark):
    """Sorted by label, in four partitions."""
    return spark.range(0, ROWS, 1, 4).selectExpr("id", f"id * 10 div {ROWS} AS label")


def test_the_order_is_random_and_follows_from_the_seed(table):
    first = make_spark_converter(table, shuffle_seed=7)
    manifest = first.open().manifest
    assert manifest.shuffle_seed == 7
    order = rows_of(first)
    assert sorted(order) == list(range(ROWS))
    assert abs(np.corrcoef(order, np.arange(ROWS))[0, 1]) < 0.04
    # Any part of a file is a sample of all labels.
    labels = np.array(order[:200]) * 10 // ROWS
    assert np.bincount(labels, minlength=10).min() >= 5
    assert "fair sample of the table" in str(first.mixing(64, 8))
    assert make_spark_converter(table, shuffle_seed=7).file_urls == first.file_urls
    first.delete()
    again = make_spark_converter(table, shuffle_seed=7)
    assert again.open().manifest.fingerprint == manifest.fingerprint
    other = make_spark_converter(table, shuffle_seed=8)
    assert other.open().manifest.content_digest != manifest.content_digest


@pytest.mark.one_lane
def test_equal_rows_do_not_stay_together(table):
    converter = make_spark_converter(table.select("label"), shuffle_seed=0)
    with converter.make_torch_dataloader(200, num_epochs=1, shuffle=False) as loader:
        seen = [len(set(batch["label"].tolist())) for batch in loader]
    assert min(seen) >= 9


@pytest.mark.one_lane
def test_files_that_are_read_in_place_are_not_shuffled(table, tmp_path):
    table.write.parquet(str(tmp_path / "table"))
    with pytest.raises(ValueError, match="shuffle_seed is for a DataFrame"):
        make_spark_converter(str(tmp_path / "table"), shuffle_seed=7)

"""Data that fill no batch, by petastorm's name: all is given, and without an end it goes round."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from parquet_sets import numbered, one

from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter


@pytest.fixture
def ten_rows(tmp_path: Path) -> SparkDatasetConverter:
    one(tmp_path, numbered(10))
    return SparkDatasetConverter(f"file://{tmp_path}", [], 10)


def sizes(converter: SparkDatasetConverter, **arguments: Any) -> tuple[list[int], set[int]]:
    """Sizes of the first batches, up to six, and the rows that were in them."""
    with converter.make_torch_dataloader(**arguments) as loader:
        batches = [batch["id"].tolist() for batch in islice(loader, 6)]
    return [len(batch) for batch in batches], {row for batch in batches for row in batch}


def test_unsharded_every_row_is_given(ten_rows: SparkDatasetConverter) -> None:
    everything = set(range(10))
    assert sizes(ten_rows, batch_size=4, num_epochs=1) == ([4, 4, 2], everything)
    assert sizes(ten_rows, batch_size=32, num_epochs=1) == ([10], everything)
    assert sizes(ten_rows, batch_size=4) == ([4] * 6, everything)
    assert sizes(ten_rows, batch_size=32) == ([32] * 6, everything)
    assert sizes(ten_rows, batch_size=4, num_epochs=1, tail="drop")[0] == [4, 4]


def test_shards_that_fill_no_batch_share_what_there_is(ten_rows: SparkDatasetConverter) -> None:
    shards = [{"cur_shard": shard, "shard_count": 3} for shard in range(3)]
    once = [sizes(ten_rows, batch_size=32, num_epochs=1, **shard) for shard in shards]
    assert [len(found) for found, _ in once] == [1, 1, 1]
    assert sum(found[0] for found, _ in once) == 10
    assert set().union(*(rows for _, rows in once)) == set(range(10))
    for shard in shards:
        assert sizes(ten_rows, batch_size=32, **shard)[0] == [32] * 6
    # Where there are full batches, all batches of a training are.
    assert [sizes(ten_rows, batch_size=3, num_epochs=1, **shard)[0] for shard in shards] == [
        [3]
    ] * 3

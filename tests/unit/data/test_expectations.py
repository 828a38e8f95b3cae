"""What a loader says before it reads: of sorted tables, and of row groups beyond the budget."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from parquet_sets import load, one, small_blocks

from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.order import mixing

ROWS, GROUP = 3_000, 50
BLOCKS_OF_ONE = 2 * 8 * GROUP * 48  # bytes: eight lanes, each with a block of one row group


def said(directory: Path, manifest: Manifest, **arguments: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(directory, manifest, **{"batch_size": 8, **arguments}).close()
    return [str(warning.message) for warning in caught]


@pytest.fixture(scope="module")
def sorted_table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """Rows in the order of their labels, two of which share a row group."""
    directory = tmp_path_factory.mktemp("sorted")
    ids = np.arange(ROWS)
    labels = ids * 7 // ROWS
    table = pa.table(
        {
            "id": ids,
            "label": labels,
            "mixed": ids % 7,
            "same": np.zeros(ROWS),
        }
    )
    return directory, one(directory, table, GROUP)


def test_the_columns_that_a_table_is_sorted_by_are_known(
    sorted_table: tuple[Path, Manifest],
) -> None:
    _, manifest = sorted_table
    clustered = [column.name for column in manifest.columns if column.is_clustered]
    assert clustered == ["label"]
    assert Manifest.from_json(manifest.to_json()).columns == manifest.columns


def test_a_column_of_words_is_known_too_and_one_row_says_nothing(tmp_path: Path) -> None:
    table = pa.table({"name": ["a"] * 4 + ["b"] * 5, "id": range(9)})
    assert [column.is_clustered for column in one(tmp_path, table, 2).columns] == [True, False]
    pairs = pa.table({"name": list("aabcdeff"), "id": range(8)})
    assert not one(tmp_path, pairs, 2).columns[0].is_clustered, "two groups of four hold one value"


def test_a_sorted_table_that_mixes_badly_is_told_of(sorted_table: tuple[Path, Manifest]) -> None:
    directory, manifest = sorted_table
    small = {
        "blocks_bytes": BLOCKS_OF_ONE,
        "window_row_groups": 1,
        "columns": ["id", "label"],
        "cur_shard": 0,
        "shard_count": 8,
    }
    (sentence,) = said(directory, manifest, **small)
    assert "sorted by 'label': most row groups hold one value of it." in sentence
    assert "A rank's batch of 8 rows comes from about 1 of 60 row groups." in sentence
    assert "the batch holds 1.0 of them on average, and 5.7 after a full shuffle" in sentence
    assert sentence.endswith("If the table is sorted, convert it with shuffle_seed=0.")
    assert said(directory, manifest, **{**small, "cur_shard": 1}) == [], "rank 0 has said it"
    unshuffled = {**small, "window_row_groups": None, "shuffle": False}
    assert said(directory, manifest, **unshuffled) == []
    assert said(directory, manifest, **{**small, "columns": ["id", "mixed", "same"]}) == []
    assert said(directory, manifest) == [], "all of it is mixed together"
    shuffled = dataclasses.replace(manifest, shuffle_seed=0)
    assert said(directory, shuffled, **small) == [], "Spark has shuffled the rows"


def test_a_converter_says_beforehand_how_well_it_mixes(
    sorted_table: tuple[Path, Manifest], tmp_path: Path
) -> None:
    directory, manifest = sorted_table
    converter = SparkDatasetConverter(f"file://{directory}", [], ROWS, manifest=manifest)
    on_one, on_eight = (converter.mixing(64, ranks) for ranks in (1, 8))
    assert on_one.is_good
    assert str(on_one).endswith("That is about as good as a full shuffle.")
    assert not on_eight.is_good
    assert "comes from about 8 of 60 row groups" in str(on_eight)
    with small_blocks(BLOCKS_OF_ONE):
        small = converter.mixing(64, 8, window_row_groups=1)
    assert small.figures.batch_labels < on_eight.figures.batch_labels
    # One row group of many rows: smaller ones are a way out.
    ids = np.arange(40 * 20_000)
    large = one(tmp_path, pa.table({"a": ids, "b": ids, "c": ids}), 20_000)
    converter = SparkDatasetConverter(f"file://{tmp_path}", [], len(ids), manifest=large)
    assert "or with parquet_row_group_size_bytes=" in str(converter.mixing(64, 8))


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 0.5), (0.3, 0.2), (-0.4, 1.0), (0.7, 0.0)])
def test_the_expected_deviation_is_that_of_many_draws(mean: float, spread: float) -> None:
    draws = np.abs(np.random.default_rng(0).normal(mean, spread, 200_000)).mean()
    found = mixing._deviation(np.array([mean, mean]), np.array([spread**2] * 2))
    assert found == pytest.approx(draws, rel=0.01)

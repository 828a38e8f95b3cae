"""Rows by number, for torch's samplers and worker processes."""

from __future__ import annotations

import io
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_sets import numbered, one, write_groups
from PIL import Image
from torch.utils.data import DataLoader, DistributedSampler

from sparkdl_runner.data import DatasetError, RowDataset, SparkDatasetConverter
from training_tables import converter_of

ROWS, GROUPS = 50, [[7, 0, 9], [1], [13, 20]]


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> SparkDatasetConverter:
    folder = tmp_path_factory.mktemp("rows")
    write_groups(folder, numbered(ROWS), GROUPS)
    return converter_of(folder)


@settings(max_examples=20, deadline=None)
@given(numbers=st.lists(st.integers(-ROWS, ROWS - 1), max_size=12), budget=st.integers(1, 2_000))
def test_rows_are_those_of_their_numbers_and_memory_is_bounded(
    converter: SparkDatasetConverter, numbers: list[int], budget: int
) -> None:
    with closing(converter.make_map_dataset(memory_budget_bytes=budget)) as dataset:
        assert len(dataset) == ROWS
        for number, row in zip(numbers, dataset.__getitems__(numbers), strict=True):
            expected = number % ROWS
            assert int(row["id"]) == expected
            assert float(row["value"]) == 2 * expected
            assert row["vector"].tolist() == [expected, expected + 1, expected + 2]
        kept = dataset._reader()
        assert kept.size_bytes <= budget or len(kept._groups) == 1 or not numbers
        assert kept.size_bytes == sum(group.size_bytes for group in kept._groups.values())


def test_what_a_row_refers_to_is_its_own_batch(converter: SparkDatasetConverter) -> None:
    """Else one kept row would keep its whole row group in memory, and a change would stay."""
    with closing(converter.make_map_dataset()) as dataset:
        row = dataset[4]
        row["vector"][:] = -1
        assert dataset[4]["vector"].tolist() == [4, 5, 6]
        assert row["vector"].untyped_storage().nbytes() == 3 * 4


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_and_workers_that_fork_after_a_row_was_read(
    converter: SparkDatasetConverter, num_workers: int
) -> None:
    with closing(converter.make_map_dataset(columns=["id"])) as dataset:
        assert dataset[3]["id"] == 3
        seen = []
        for rank in range(2):
            sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, seed=5)
            batches = DataLoader(dataset, 8, sampler=sampler, num_workers=num_workers)
            seen += [int(row) for batch in batches for row in batch["id"]]
        assert sorted(seen) == list(range(ROWS))
        again = pickle.loads(pickle.dumps(dataset))
        assert again[-1]["id"] == ROWS - 1
        again.close()


def test_columns_whose_rows_differ(tmp_path: Path) -> None:
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    table = pa.table(
        {
            "text": ["a", None, "ccc", "d"],
            "tokens": pa.array([[1], [], [3, 4], [5]], pa.list_(pa.int64())),
            "padded": pa.array([[1], [], [3, 4], [5]], pa.list_(pa.int64())),
            "image": [stream.getvalue(), stream.getvalue(), None, b"none"],
        }
    )
    one(tmp_path, table, 3)
    options: dict[str, Any] = {
        "nulls": {"text": "fill", "image": "mask"},
        "ragged": ["tokens"],
        "pad": {"padded": 2},
        "images": {"image": (4, 5)},
    }
    with closing(converter_of(tmp_path).make_map_dataset(**options)) as dataset:
        third, second = dataset.__getitems__([2, 1])
        assert (second["text"], third["text"]) == ("", "ccc")
        assert (second["tokens"].tolist(), third["tokens"].tolist()) == ([], [3, 4])
        assert (second["padded"].tolist(), int(third["padded_length"])) == ([0, 0], 2)
        assert torch.equal(second["image"], torch.from_numpy(pixels))
        assert (bool(second["image_mask"]), bool(third["image_mask"])) == (True, False)
        with pytest.raises(DatasetError, match="row 3, column 'image': it is no image"):
            dataset[3]


def test_what_does_not_fit_is_refused(converter: SparkDatasetConverter) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colums'; did you mean 'colu"):
        converter.make_map_dataset(colums=["id"])
    with pytest.raises(ValueError, match="memory_budget_bytes is 0"):
        converter.make_map_dataset(memory_budget_bytes=0)
    dataset: RowDataset = converter.make_map_dataset()
    with pytest.raises(IndexError, match="there is no row 50: the data set has 50 rows"):
        dataset[ROWS]
    dataset.close()

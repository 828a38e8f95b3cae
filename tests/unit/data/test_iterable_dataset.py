"""A ``torch.utils.data.IterableDataset`` of batches: equal steps, every row once, exact resumes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_sets import numbered, one
from torch.utils.data import DataLoader

from sparkdl_runner.data import BatchDataset, SparkDatasetConverter, StateError
from training_tables import converter_of

ROWS = 103


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> SparkDatasetConverter:
    folder = tmp_path_factory.mktemp("rows")
    one(folder, numbered(ROWS), 7)
    return converter_of(folder)


def ids(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_it_gives_the_batches_of_a_loader_and_each_iteration_is_the_next_epoch(
    converter: SparkDatasetConverter,
) -> None:
    with converter.make_torch_dataloader(8, num_epochs=1, seed=3) as loader:
        expected = [ids(loader) for _ in range(3)]
    dataset = converter.make_iterable_dataset(8, seed=3)
    batches = DataLoader(dataset, batch_size=None)
    assert len(batches) == len(expected[0]) == dataset.steps_per_epoch
    assert ids(batches) == expected[0]
    assert next(iter(batches))["id"].tolist() == expected[1][0]  # One who looks at a batch.
    assert ids(batches) == expected[2]
    dataset.set_epoch(1)
    assert ids(batches) == expected[1]
    dataset.close()


@settings(max_examples=12, deadline=None)
@given(
    workers=st.integers(0, 3),
    ranks=st.integers(1, 2),
    batch_size=st.integers(1, 9),
    tail=st.sampled_from(["drop", "pad", "uneven", "wrap"]),
)
def test_ranks_and_workers_take_equal_steps_and_share_the_rows(
    converter: SparkDatasetConverter, workers: int, ranks: int, batch_size: int, tail: str
) -> None:
    seen: list[int] = []
    lengths = set()
    for rank in range(ranks):
        dataset = converter.make_iterable_dataset(
            batch_size, num_workers=workers, cur_shard=rank, shard_count=ranks, tail=tail
        )
        found = in_workers(dataset)
        lengths |= {len(found), len(dataset)}
        for batch in found:
            rows = batch["id"][batch["row_mask"]] if tail == "pad" else batch["id"]
            seen += rows.tolist()
    assert len(lengths) == 1
    if tail == "wrap":
        assert set(seen) == set(range(ROWS))
    elif tail == "drop":
        step_rows = batch_size * ranks * max(1, workers)
        assert len(set(seen)) == len(seen) == ROWS // step_rows * step_rows
    else:
        assert sorted(seen) == list(range(ROWS))


def in_workers(dataset: BatchDataset) -> list[Any]:
    """The batches of each worker of a ``DataLoader``, without starting processes."""
    if not dataset.num_workers:
        with closing(dataset):
            return list(dataset)
    from torch.utils.data._utils import worker as torch_worker

    found = []
    for number in range(dataset.num_workers):
        mine = pickle.loads(pickle.dumps(dataset))
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=number, num_workers=dataset.num_workers, seed=0, dataset=mine
        )
        try:
            found += list(mine)
            mine.close()
        finally:
            torch_worker._worker_info = None
    return found


def test_the_lanes_of_workers_do_not_depend_on_the_number_of_ranks(
    converter: SparkDatasetConverter,
) -> None:
    def steps(ranks: int) -> list[set[int]]:
        sizes = {"global_batch_size": 12, "num_workers": 2, "shard_count": ranks}
        parts = [
            ids(in_workers(converter.make_iterable_dataset(**sizes, cur_shard=rank, tail="drop")))
            for rank in range(ranks)
        ]
        return [{row for part in step for row in part} for step in zip(*parts, strict=True)]

    assert steps(1) == steps(2)


@settings(max_examples=12, deadline=None)
@given(taken=st.integers(0, 12), epoch=st.integers(0, 2))
def test_a_state_of_any_step_goes_on_exactly(
    converter: SparkDatasetConverter, taken: int, epoch: int
) -> None:
    arguments = {"batch_size": 8, "tail": "drop", "seed": 5}
    dataset = converter.make_iterable_dataset(**arguments)
    dataset.set_epoch(epoch)
    batches = iter(dataset)
    begun = ids(batch for _, batch in zip(range(taken), batches, strict=False))
    state = dataset.state_dict()
    rest, following = ids(batches), ids(dataset)
    dataset.close()
    assert len(begun + rest) == 12

    resumed = converter.make_iterable_dataset(**arguments)
    resumed.load_state_dict(state)
    resumed.set_epoch(state["epoch"])  # A loop over epochs calls it; the state holds.
    if taken < 12:
        assert ids(resumed) == rest
    assert ids(resumed) == following
    resumed.close()


def test_an_iterator_of_before_is_refused(converter: SparkDatasetConverter) -> None:
    dataset = converter.make_iterable_dataset(8)
    first = iter(dataset)
    next(first)
    assert len(next(iter(dataset))["id"]) == 8
    with pytest.raises(RuntimeError, match="replaced by a later one"):
        next(first)
    dataset.close()


def test_what_does_not_fit_is_refused_in_a_sentence(converter: SparkDatasetConverter) -> None:
    with pytest.raises(TypeError, match="did you mean 'columns'"):
        converter.make_iterable_dataset(8, colums=["id"])
    with pytest.raises(TypeError, match="num_epochs=None has no end"):
        len(converter.make_iterable_dataset(8, num_epochs=None))
    with pytest.raises(ValueError, match="num_workers=0, and this data set was made with num_work"):
        next(iter(converter.make_iterable_dataset(8, num_workers=2)))
    state = converter.make_iterable_dataset(8).state_dict()
    with pytest.raises(StateError, match="global_batch_size"):
        converter.make_iterable_dataset(4).load_state_dict(state)


def test_worker_processes_give_every_row_in_each_epoch_in_another_order(
    converter: SparkDatasetConverter,
) -> None:
    dataset = converter.make_iterable_dataset(8, num_workers=2, tail="uneven")
    batches = DataLoader(dataset, batch_size=None, num_workers=2)
    epochs = [np.concatenate(ids(batches)) for _ in range(2)]
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)
    assert not np.array_equal(*epochs)

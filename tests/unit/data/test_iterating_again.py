"""Each iteration begins an epoch, as torch's DataLoader does; a state goes on in the middle."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from parquet_sets import load, numbered, one

from sparkdl_runner.data import MixedLoader
from sparkdl_runner.data.consumers.tf_dataset import TFDatasetContext
from sparkdl_runner.data.dataset.manifest import Manifest
from training_tables import converter_of

ROWS, STEPS = 40, 10
Ids = list[list[int]]
Data = tuple[Path, Manifest]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("rows")
    return folder, one(folder, numbered(ROWS), 7)


def ids(batches: Any, most: int | None = None) -> Ids:
    return [batch["id"].tolist() for batch in itertools.islice(batches, most)]


def of_loader(data: Data, **arguments: Any) -> Any:
    return load(*data, batch_size=4, memory_budget_bytes=30_000, **arguments)


def of_mix(data: Data, **arguments: Any) -> Any:
    return MixedLoader([(of_loader(data, **arguments), 1)])


def of_dataset(data: Data, **arguments: Any) -> Any:
    return converter_of(data[0]).make_iterable_dataset(4, memory_budget_bytes=30_000, **arguments)


KINDS = pytest.mark.parametrize("open_one", [of_loader, of_mix, of_dataset])
Open = Callable[..., Any]


@pytest.fixture
def epochs(data: Data) -> list[Ids]:
    with of_loader(data) as loader:
        return [ids(loader) for _ in range(8)]


@KINDS
def test_an_early_end_is_followed_by_the_next_epoch(
    open_one: Open, data: Data, epochs: list[Ids]
) -> None:
    loader = open_one(data)
    assert [ids(loader, 4) for _ in range(3)] == [epoch[:4] for epoch in epochs[:3]]
    assert ids(loader) == epochs[3]
    assert ids(loader) == epochs[4]
    loader.set_epoch(1)
    assert [ids(loader, 2), ids(loader, 2)] == [epochs[1][:2], epochs[2][:2]]
    loader.close()


@KINDS
def test_without_shuffling_each_iteration_has_the_same_rows(open_one: Open, data: Data) -> None:
    loader = open_one(data, shuffle=False)
    assert [ids(loader, 2), ids(loader, 2)] == 2 * [[[0, 1, 2, 3], [4, 5, 6, 7]]]
    assert [row for batch in ids(loader) for row in batch] == list(range(ROWS))
    loader.close()


@KINDS
def test_an_iterator_goes_on_and_looking_at_it_costs_no_epoch(
    open_one: Open, data: Data, epochs: list[Ids]
) -> None:
    loader = open_one(data)
    iter(loader)
    batches = iter(loader)  # Nothing was taken of the first.
    assert ids(batches, 3) + ids(batches) == epochs[0]
    loader.close()


@KINDS
@pytest.mark.parametrize("taken", [1, STEPS - 1, STEPS])
def test_a_state_after_an_early_end_goes_on_once_where_it_was_taken(
    open_one: Open, data: Data, epochs: list[Ids], taken: int
) -> None:
    first = open_one(data)
    ids(first)
    ids(first, taken)
    state = first.state_dict()
    assert ids(first) == epochs[2]  # In the same process, a new iteration is a new epoch.
    first.close()
    for epoch_is_named in (False, True):
        second = open_one(data)
        second.load_state_dict(state)
        if epoch_is_named:  # A loop over epochs calls it, and the state holds.
            second.set_epoch(state["epoch"])
        if taken < STEPS:
            assert second.state_dict() == state
            assert ids(second, 1) == epochs[1][taken : taken + 1]
        assert ids(second) == epochs[2]
        second.close()


@pytest.mark.parametrize("open_one", [of_loader, of_dataset])
def test_a_pass_of_several_epochs_begins_with_the_next_one(
    open_one: Open, data: Data, epochs: list[Ids]
) -> None:
    def joined(first: int, last: int) -> Ids:
        return [batch for epoch in epochs[first:last] for batch in epoch]

    loader = open_one(data, num_epochs=2)
    assert ids(loader, STEPS + 3) == joined(0, 2)[: STEPS + 3]
    assert ids(loader, STEPS) == epochs[2]  # Ended between two epochs: none is left out.
    assert ids(loader) == joined(3, 5)
    loader.close()
    endless = open_one(data, num_epochs=None)
    assert ids(endless, STEPS + 3) == joined(0, 2)[: STEPS + 3]
    assert ids(endless, 2 * STEPS) == joined(2, 4)
    assert ids(endless, 1) == epochs[4][:1]
    endless.close()


@KINDS
def test_what_is_closed_says_so(open_one: Open, data: Data) -> None:
    def used(loader: Any) -> Iterator[Iterator[Any]]:
        yield iter(loader)
        begun = iter(loader)
        next(begun)
        yield begun

    for number in range(2):
        loader = open_one(data)
        batches = next(itertools.islice(used(loader), number, None))
        loader.close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="is closed"):
                next(batches)
        if open_one is not of_dataset:  # That one opens its files again.
            with pytest.raises(RuntimeError, match="is closed"):
                iter(loader)


def test_a_tf_dataset_after_its_with_block_says_so(data: Data) -> None:
    context = TFDatasetContext(lambda: nullcontext(of_loader(data)), 1, None)
    context._open()
    for is_left_early in (False, True):
        batches = context._batches(dict)  # As TensorFlow calls it.
        assert len(list(itertools.islice(batches, STEPS - is_left_early))) == STEPS - is_left_early
    context.__exit__()
    with pytest.raises(RuntimeError, match="is closed"):
        next(batches)
    with pytest.raises(RuntimeError, match="is not open"):
        next(context._batches(dict))


@pytest.mark.parametrize("open_one", [of_loader, of_mix])
def test_a_pass_that_was_over_stays_over(open_one: Open, data: Data) -> None:
    loader = open_one(data)
    batches = iter(loader)
    ids(batches)
    counted = iter(loader)
    ids(counted, STEPS)  # Asks for no more.
    replaced = iter(loader)
    iter(loader)
    loader.close()
    assert next(batches, None) is None
    assert next(counted, None) is None
    with pytest.raises(RuntimeError, match="replaced by a later one"):
        next(replaced)


def test_a_mix_that_is_moved_after_a_state_reads_its_sources_from_the_start(
    data: Data, epochs: list[Ids]
) -> None:
    with of_mix(data) as mix:
        ids(mix, 3)
        state = mix.state_dict()
    with of_mix(data) as mix:
        mix.load_state_dict({**state, "epoch": 1, "step": 0})
        mix.set_epoch(0)
        assert ids(mix) == epochs[0]

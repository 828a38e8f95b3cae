"""Several loaders in turn: by weight, equal on all ranks, to the end asked for, resumable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_sets import load, one

from sparkdl_runner.data import MixedLoader, StateError
from sparkdl_runner.data.dataset.manifest import Manifest

ROWS = (60, 23)
Sets = list[tuple[Path, Manifest]]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    folder = tmp_path_factory.mktemp("sets")
    found = []
    for number, rows in enumerate(ROWS):
        table = pa.table({"id": range(100 * number, 100 * number + rows)})
        found.append((folder / str(number), one(folder / str(number), table, 7)))
    return found


@contextmanager
def mixed(
    sets: Sets,
    weights: tuple[float, float] = (0.7, 0.3),
    ranks: int = 1,
    rank: int = 0,
    **more: Any,
) -> Iterator[MixedLoader]:
    shard = {"global_batch_size": 4, "cur_shard": rank, "shard_count": ranks, "lanes": 4}
    shard["blocks_bytes"] = 30_000  # The endless one reads ahead.
    sources = [
        (load(*one, **shard, num_epochs=epochs), weight)
        for one, weight, epochs in zip(sets, weights, (1, None), strict=True)
    ]
    with MixedLoader(sources, **more) as loader:
        yield loader


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


@pytest.mark.parametrize("stop", ["first", "all"])
def test_an_epoch_ends_as_asked(sets: Sets, stop: Any) -> None:
    with mixed(sets, stop=stop, seed=4) as loader:
        epochs = []
        for _ in range(3):
            length = len(loader)
            epochs.append(ids(loader))
            assert len(epochs[-1]) == length
    lengths = [rows // 4 for rows in ROWS]
    orders = []
    for epoch in epochs:
        taken = [[step for step in epoch if step[0] // 100 == number] for number in (0, 1)]
        rest = [len(steps) - length for steps, length in zip(taken, lengths, strict=True)]
        # The last step gave the last batch of a source: of the first that ended, or of the last.
        last = epoch[-1][0] // 100
        assert rest[last] == 0
        assert (rest[1 - last] < 0) == (stop == "first")
        for steps, length in zip(taken, lengths, strict=True):
            for begin in range(0, len(steps), length):
                rows = [row for step in steps[begin : begin + length] for row in step]
                assert len(set(rows)) == len(rows)
                orders.append(tuple(rows[:4]))
    assert len(set(orders)) == len(orders)  # No source is read twice in one order.


def test_sources_are_drawn_by_weight(sets: Sets) -> None:
    with mixed(sets, (9, 3), stop="all") as loader:
        loader._lengths[:] = 3_000
        turns = loader._draw(5)
    assert abs((turns == 0).mean() - 0.75) < 0.02
    # Independent draws: a source follows itself as often as its weight says.
    assert abs((turns[1:][turns[:-1] == 1] == 1).mean() - 0.25) < 0.05


@settings(max_examples=5, deadline=None)
@given(
    taken=st.integers(0, 60),
    stop=st.sampled_from(["first", "all"]),
    before=st.sampled_from([1, 2, 4]),
    after=st.sampled_from([1, 2, 4]),
)
def test_a_state_of_any_step_goes_on_exactly_on_any_ranks(
    sets: Sets, taken: int, stop: Any, before: int, after: int
) -> None:
    def steps(ranks: int, state: Any, count: int) -> tuple[list[set[int]], list[str]]:
        """The rows of ``count`` global batches, and the state of each rank after them."""
        parts, states = [], []
        for rank in range(ranks):
            with mixed(sets, ranks=ranks, rank=rank, stop=stop, seed=2) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(state))
                    loader.set_epoch(loader.epoch)  # A loop over epochs calls it.
                found: list[list[int]] = []
                while len(found) < count:
                    taking = zip(range(count - len(found)), loader, strict=False)
                    found += [batch["id"].tolist() for _, batch in taking]
                parts.append(found)
                states.append(json.dumps(loader.state_dict()))
        return [{row for part in step for row in part} for step in zip(*parts, strict=True)], states

    whole, _ = steps(1, None, 70)
    begun, states = steps(before, None, taken)
    assert len(set(states)) == 1
    rest, _ = steps(after, states[0], 70 - taken)
    assert begun + rest == whole


def test_one_who_counts_batches_and_one_who_looks_at_the_first(sets: Sets) -> None:
    with mixed(sets) as loader:
        expected = [ids(loader), ids(loader)]
    with mixed(sets) as loader:
        first = iter(loader)
        begun = [next(first)["id"].tolist() for _ in range(len(loader))]  # Asks for no more.
        assert [begun, ids(loader)] == expected
        loader.set_epoch(0)
        old = iter(loader)
        next(old)
        loader.set_epoch(1)
        assert ids(loader) == expected[1]
        with pytest.raises(RuntimeError, match="replaced by a later one"):
            next(old)


def test_what_does_not_fit_is_refused(sets: Sets) -> None:
    loader = load(*sets[0], batch_size=4)
    with pytest.warns(UserWarning, match="there will be no step"):
        small = load(*sets[1], batch_size=99)
    cases: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (TypeError, "source 1 is a list", [(loader, 1), ([], 1)], {}),
        (ValueError, "the weight 0; expected above 0", [(loader, 0)], {}),
        (ValueError, "names a loader twice", [(loader, 1), (loader, 1)], {}),
        (ValueError, "sources is empty", [], {}),
        (ValueError, "stop is 'last'; expected one of first, all", [(loader, 1)], {"stop": "last"}),
        (ValueError, "source 0 has no step", [(small, 1)], {}),
    ]
    for error, sentence, sources, arguments in cases:
        with pytest.raises(error, match=sentence):
            MixedLoader(sources, **arguments)
    with mixed(sets) as one_mix, mixed(sets, (1, 1)) as other:
        state = one_mix.state_dict()
        with pytest.raises(StateError, match="weights="):
            other.load_state_dict(state)
        for altered in ({"step": 10_000}, {"epoch": "1"}, {"sources": []}, {"seed": 9}):
            with pytest.raises(StateError):
                one_mix.load_state_dict({**state, **altered})

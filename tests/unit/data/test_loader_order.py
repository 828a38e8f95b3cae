"""What every rank gets: each row once, equal steps, one order for all world sizes."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parquet_sets import load, numbered, one, write_groups

from sparkdl_runner.data.dataset.manifest import Manifest

quick = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
row_groups = st.lists(st.lists(st.integers(0, 12), max_size=17), min_size=1, max_size=3)


def batches(directory: Path, manifest: Manifest, **arguments: Any) -> list[dict[str, Any]]:
    with load(directory, manifest, **arguments) as loader:
        found = list(loader)
        assert len(found) == len(loader) * (arguments.get("num_epochs") or 1)
    return found


def all_ranks(
    directory: Path, manifest: Manifest, world_size: int, **arguments: Any
) -> list[list[dict[str, Any]]]:
    return [
        batches(directory, manifest, cur_shard=rank, shard_count=world_size, **arguments)
        for rank in range(world_size)
    ]


def joined(ranks: list[list[dict[str, Any]]]) -> list[list[int]]:
    """The ids of each global batch."""
    return [[int(i) for batch in step for i in batch["id"]] for step in zip(*ranks, strict=True)]


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@quick
@given(
    groups=row_groups,
    world_size=st.integers(1, 7),
    per_rank=st.integers(1, 8),
    tail=st.sampled_from(["drop", "pad", "uneven"]),
    shuffle=st.booleans(),
    budget=st.sampled_from([5_000, 1 << 20]),
    seed=st.integers(0, 3),
)
def test_every_row_once_and_equal_steps(
    groups: list[list[int]],
    world_size: int,
    per_rank: int,
    tail: str,
    shuffle: bool,
    budget: int,
    seed: int,
) -> None:
    rows = sum(map(sum, groups))
    with tempfile.TemporaryDirectory() as name:
        manifest = write_groups(Path(name), numbered(rows), groups)
        ranks = all_ranks(
            Path(name),
            manifest,
            world_size,
            batch_size=per_rank,
            tail=tail,
            shuffle=shuffle,
            blocks_bytes=budget,
            seed=seed,
        )
    assert len({len(rank) for rank in ranks}) == 1
    seen: list[int] = []
    for batch in (batch for rank in ranks for batch in rank):
        ids = batch["id"]
        if tail == "pad":
            assert len(ids) == len(batch["row_mask"]) == per_rank
            assert not ids[~batch["row_mask"]].any()
            batch = {key: value[batch["row_mask"]] for key, value in batch.items()}
            ids = batch["id"]
        elif tail == "drop":
            assert len(ids) == per_rank
        assert torch.equal(batch["value"], 2.0 * ids)
        assert torch.equal(batch["vector"], ids[:, None] + torch.arange(3.0))
        seen += ids.tolist()
    assert len(set(seen)) == len(seen)
    step_rows = world_size * per_rank
    assert len(seen) == (rows // step_rows * step_rows if tail == "drop" else rows)


@settings(quick, max_examples=8)
@given(groups=row_groups, per_rank=st.integers(1, 5), tail=st.sampled_from(["drop", "pad"]))
def test_world_sizes_1_2_and_4_see_the_same_global_batches(
    groups: list[list[int]], per_rank: int, tail: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        manifest = write_groups(Path(name), numbered(sum(map(sum, groups))), groups)
        one_rank, two, four = (
            joined(
                all_ranks(
                    Path(name),
                    manifest,
                    world_size,
                    global_batch_size=4 * per_rank,
                    tail=tail,
                    num_epochs=2,
                    blocks_bytes=20_000,
                )
            )
            for world_size in (1, 2, 4)
        )
    assert one_rank == two == four


def test_threads_and_prefetching_do_not_change_the_order(directory: Path) -> None:
    manifest = one(directory, numbered(200))
    found = [
        joined([batches(directory, manifest, batch_size=8, **arguments)])
        for arguments in (
            {"workers_count": 1},
            {"workers_count": 7},
            {"prefetch_batches": 1},
            {"prefetch_batches": 50},
            {"columns": ["id"]},
        )
    ]
    assert all(order == found[0] for order in found)


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven", "wrap"])
def test_resuming_at_every_step_gives_the_same_batches(directory: Path, tail: str) -> None:
    manifest = write_groups(directory, numbered(103), [[20, 5, 0, 30], [8, 40]])
    arguments = {
        "global_batch_size": 16,
        "tail": tail,
        "num_epochs": 2,
        "seed": 5,
        "blocks_bytes": 30_000,
    }
    whole = batches(directory, manifest, **arguments)
    with load(directory, manifest, **arguments) as loader:
        states = [loader.state_dict()]
        states += [loader.state_dict() for _ in loader]
    assert len(states) == len(whole) + 1
    for step, state in enumerate(states[:-1]):
        with load(directory, manifest, **arguments) as loader:
            loader.load_state_dict(state)
            rest = list(loader)
        assert len(rest) == len(whole) - step
        for found, expected in zip(rest, whole[step:], strict=True):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], expected[key]) for key in found)


def test_resuming_with_2_ranks_what_4_began(directory: Path) -> None:
    manifest = write_groups(directory, numbered(24), [[10, 6], [8]])
    arguments = {"global_batch_size": 8, "num_epochs": 2, "seed": 1}
    four = joined(all_ranks(directory, manifest, 4, **arguments))
    for step in range(len(four)):
        states = []
        for rank in range(4):
            with load(directory, manifest, cur_shard=rank, shard_count=4, **arguments) as loader:
                taken = iter(loader)
                for _ in range(step):
                    next(taken)
                states.append(loader.state_dict())
        assert all(state == states[0] for state in states)
        rest = []
        for rank in range(2):
            with load(directory, manifest, cur_shard=rank, shard_count=2, **arguments) as loader:
                loader.load_state_dict(states[0])
                rest.append(list(loader))
        assert joined(rest) == four[step:]


def test_a_state_brings_its_lanes_along(directory: Path) -> None:
    manifest = one(directory, numbered(120))
    three = joined(all_ranks(directory, manifest, 3, global_batch_size=12))
    with load(directory, manifest, cur_shard=0, shard_count=3, global_batch_size=12) as loader:
        state = loader.state_dict()
    assert state["lanes"] == 12
    rest = []
    for rank in range(2):
        with load(
            directory, manifest, cur_shard=rank, shard_count=2, global_batch_size=12
        ) as loader:
            assert loader.lanes == 4
            loader.load_state_dict(state)
            rest.append(list(loader))
    assert joined(rest) == three


def test_epochs_differ_and_set_epoch_finds_them_again(directory: Path) -> None:
    manifest = one(directory, numbered(60))
    arguments = {"batch_size": 4, "blocks_bytes": 30_000}
    with load(directory, manifest, **arguments) as loader:
        passes = [joined([list(loader)]) for _ in range(3)]
        assert loader.epoch == 3
        loader.set_epoch(1)
        assert joined([list(loader)]) == passes[1]
    assert passes[0] != passes[1] != passes[2]
    with load(directory, manifest, **arguments, num_epochs=None) as loader:
        found = [batch for batch, _ in zip(loader, range(45), strict=False)]
    assert joined([found]) == [batch for one_pass in passes for batch in one_pass]


def test_who_counts_batches_need_not_ask_for_the_end(directory: Path) -> None:
    """Lightning makes the next iterator while it still holds the last one."""
    manifest = one(directory, numbered(40))
    # A small budget, so that the endless one does not read hundreds of epochs ahead.
    arguments = {"batch_size": 4, "blocks_bytes": 30_000}
    with load(directory, manifest, **arguments) as loader:
        first = iter(loader)
        rows = [int(i) for _ in range(len(loader)) for i in next(first)["id"]]
        loader.set_epoch(1)
        second = iter(loader)
        assert len(list(second)) == 10
        assert next(first, None) is None
    assert sorted(rows) == list(range(40))
    with load(directory, manifest, **arguments, num_epochs=None) as loader:
        for epoch in range(3):
            taken = iter(loader)
            rows = [int(i) for _ in range(loader.steps_per_epoch) for i in next(taken)["id"]]
            assert sorted(rows) == list(range(40)), epoch


def test_an_endless_loader_has_no_length(directory: Path) -> None:
    """A TypeError is what list(), torch's DataLoader, tqdm and Lightning take for none."""
    manifest = one(directory, numbered(40))
    with load(directory, manifest, batch_size=4, num_epochs=None) as loader:
        with pytest.raises(TypeError, match="steps_per_epoch says how many"):
            len(loader)
        assert operator.length_hint(loader, -1) == -1
        assert loader.steps_per_epoch == 10
    with load(directory, manifest, batch_size=4) as loader:
        assert len(loader) == loader.steps_per_epoch == 10


def test_wrapping_gives_full_batches_of_every_row(directory: Path) -> None:
    manifest = write_groups(directory, numbered(23), [[5, 0, 9], [9]])
    for world_size, batch_size in ((1, 5), (2, 4), (4, 8)):
        ranks = all_ranks(directory, manifest, world_size, batch_size=batch_size, tail="wrap")
        assert {len(batch["id"]) for rank in ranks for batch in rank} == {batch_size}
        seen = [int(i) for rank in ranks for batch in rank for i in batch["id"]]
        assert set(seen) == set(range(23))
        assert len(seen) == -(-23 // (world_size * batch_size)) * world_size * batch_size


def test_set_epoch_after_loading_a_state_keeps_its_step(directory: Path) -> None:
    manifest = one(directory, numbered(40))
    with load(directory, manifest, batch_size=4) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
    assert (state["epoch"], state["step"]) == (0, 3)
    with load(directory, manifest, batch_size=4) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(0)
        assert loader.step == 3
        loader.set_epoch(1)
        assert (loader.epoch, loader.step) == (1, 0)


def test_an_empty_data_set_has_no_steps(directory: Path) -> None:
    manifest = write_groups(directory, numbered(0), [[], []])
    for tail in ("drop", "pad", "uneven", "wrap"):
        assert batches(directory, manifest, batch_size=4, tail=tail) == []
    with load(directory, manifest, batch_size=4, tail="wrap", num_epochs=None) as loader:
        assert list(loader) == []


def test_without_shuffle_one_rank_reads_the_data_set_in_order(directory: Path) -> None:
    manifest = one(directory, numbered(40))
    found = batches(directory, manifest, batch_size=8, shuffle=False)
    assert [row for batch in joined([found]) for row in batch] == list(range(40))


def test_a_sorted_data_set_comes_out_shuffled(tmp_path: Path) -> None:
    """By default settings, but a budget that is a tenth of the data set."""
    rows = 16_000
    manifest = one(tmp_path, numbered(rows), rows // 160)
    budget = rows * 20 // 10
    with load(tmp_path, manifest, batch_size=64, blocks_bytes=budget) as loader:
        ids = torch.cat([batch["id"] for batch in loader]).double()
    places = torch.arange(len(ids)).double()
    full = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0)).double()
    found, expected = (
        abs(torch.corrcoef(torch.stack([places, order])))[0, 1] for order in (ids, full)
    )
    assert found < expected + 0.02

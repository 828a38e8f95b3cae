"""Which ranks are named that train another model, and what is compared."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparkdl_runner import Trainer, verify_replicas
from sparkdl_runner.rank import replicas
from sparkdl_runner.rank.replicas import MOST_TURNS, Replicas, differences
from sparkdl_runner.rank.world import Peer, assign_ranks
from sparkdl_runner.training.replicas import _sum_of_bits

PEERS = [
    Peer(partition=i, host="h", host_key="h", address="10.0.0.1", interface="e") for i in range(4)
]
WORLDS = list(assign_ranks(PEERS, backend="torch").values())
NAMES = ["a.weight", "a.bias", "b.weight", "b.bias", "c"]


def told(step=2, sums=(1, 2, 3, 4, 5), *, first=True, copies=None):
    names = {"names": NAMES, "copies": copies} if first else {}
    return {"model": 0, "step": step, "sums": list(sums), "ends_run": True, **names}


def test_equal_copies_are_no_news_and_a_different_one_is_named_once():
    of_all = Replicas()
    for world in WORLDS:
        assert of_all.compare(world, told()) is None
    for turn in (100, 200):
        found = None
        for world in WORLDS:
            sums = (1, 2, 9, 4, 5) if world.rank == 2 else (1, 2, 3, 4, 5)
            found = found or of_all.compare(world, told(turn, sums, first=False))
        if turn == 100:
            assert found is not None
            assert found[0].rank == 2
            assert "model than the other ranks: at step 100 it differs in b.weight. " in found[1]
        else:
            assert found is None


def test_of_many_parameters_the_first_are_named_and_all_ranks_that_differ():
    of_all, found = Replicas(), None
    for world in reversed(WORLDS):
        sums = [10 * world.rank + at if world.rank in (1, 3) else at for at in range(5)]
        found = found or of_all.compare(world, told(sums=sums))
    assert found is not None
    assert found[0].rank == 1
    assert "differs in a.weight, a.bias, b.weight and 2 more. So does rank 3." in found[1]


def test_only_ranks_that_hold_the_same_part_are_compared():
    """A mesh of two copies, each of two shards; the last parameter is whole on all ranks."""
    copies = {rank: [f"shard {rank % 2}"] * 4 + [""] for rank in range(4)}
    sums = {rank: [100 * (rank % 2) + at for at in range(4)] + [7] for rank in range(4)}
    assert differences(sums, copies) == {}
    sums[3][1] += 1
    sums[0][4] += 1
    assert differences(sums, copies) == {3: [1], 0: [4]}


@pytest.mark.parametrize("sharded", [False, True])
def test_of_two_copies_either_may_be_the_wrong_one(sharded):
    of_all, found = Replicas(), None
    worlds = WORLDS if sharded else assign_ranks(PEERS[:2], backend="torch").values()
    copies = {rank: [f"shard {rank % 2}"] * 5 if sharded else None for rank in range(4)}
    for world in worlds:
        sums = [100 * (world.rank % 2 if sharded else 0) + at for at in range(5)]
        sums[2] += world.rank == 1
        found = found or of_all.compare(world, told(sums=sums, copies=copies[world.rank]))
    assert found is not None
    assert found[0].rank == (3 if sharded else 1)
    other = 1 if sharded else 0
    assert f"Only rank {other} has that part too: either may be wrong. Such" in found[1]


def test_a_part_that_all_have_tells_which_of_two_copies_is_wrong():
    of_all, found = Replicas(), None
    for world in WORLDS:
        sums = [10 * (world.rank % 2), 5, 5, 5, 5]
        if world.rank == 2:
            sums = [7, 7, 5, 5, 5]
        copies = [f"shard {world.rank % 2}", *[""] * 4]
        found = found or of_all.compare(world, told(sums=sums, copies=copies))
    assert found is not None
    assert found[0].rank == 2
    assert "either may be wrong" not in found[1]


def test_a_rank_that_never_tells_keeps_nobody_waiting_and_no_memory():
    of_all = Replicas()
    for step in range(1000):
        for world in WORLDS[:3]:
            assert of_all.compare(world, told(step)) is None
    assert len(of_all._turns) <= MOST_TURNS + 1


def test_a_rank_that_is_far_behind_is_compared_at_its_first_step():
    of_all = Replicas()
    for step in range(2, 10_000, 100):
        for world in WORLDS[:3]:
            assert of_all.compare(world, told(step)) is None
    world, text = of_all.compare(WORLDS[3], told(2, (1, 2, 3, 4, 6)))
    assert world == WORLDS[3]
    assert "at step 2 it differs in c." in text


def test_a_rank_that_begins_to_tell_late_is_compared_where_all_are():
    of_all = Replicas()
    for step in range(2, 10_000, 100):
        for world in WORLDS[:3]:
            assert of_all.compare(world, told(step)) is None
        if 5_000 < step < 9_000:
            assert of_all.compare(WORLDS[3], told(step)) is None
    assert of_all.compare(WORLDS[3], told(9_902, (1, 2, 3, 4, 6))) is not None


@given(st.lists(st.integers(0, 2), min_size=3, max_size=8))
def test_who_is_named_is_never_with_most(values):
    different = differences(
        {rank: [one] for rank, one in enumerate(values)}, dict.fromkeys(range(8))
    )
    usual = [one for rank, one in enumerate(values) if rank not in different]
    assert len(set(usual)) == 1
    assert all(values[rank] != usual[0] for rank in different)
    assert all(values.count(one) <= len(usual) for one in values)


@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8]),
    st.integers(0, 11),
    st.integers(0, 7),
    st.sampled_from([12, 24]),
    st.integers(0, 1),
)
def test_any_bit_counts(dtype, element, bit, size, offset):
    flat = torch.arange(size + offset).to(dtype)[offset:]
    changed = flat.clone()
    changed.view(torch.uint8)[element * flat.element_size()] ^= 1 << bit
    assert _sum_of_bits(flat) != _sum_of_bits(changed)
    assert _sum_of_bits(flat) == _sum_of_bits(flat.clone()), "wherever it lies in memory"
    rows = flat.reshape(3, -1)
    assert _sum_of_bits(rows.t()) == _sum_of_bits(rows.t().contiguous())


@pytest.fixture
def sent(monkeypatch):
    messages = []
    monkeypatch.setattr(replicas, "_send", None)
    monkeypatch.setattr(replicas, "_worker_pid", None)
    replicas.connect(messages.append)
    return messages


def trained(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


def test_parameters_and_the_optimizers_state_are_told_when_they_are_due(sent):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    check = verify_replicas(model, optimizer=optimizer, every_steps=5)
    trained(model, optimizer, 3)
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 3))  # Validation is no step.
    model.train()
    trained(model, optimizer, 8)
    assert [one["step"] for one in sent] == [2, 5, 10]
    assert sent[0]["names"][:2] == ["0.weight", "0.weight (momentum_buffer of the optimizer)"]
    assert len(sent[0]["names"]) == len(sent[0]["sums"]) == 8, "buffers may differ"
    assert "names" not in sent[1], "they have not changed"
    assert sent[0]["sums"] != sent[1]["sums"]
    check.remove()
    trained(model, optimizer, 10)
    assert len(sent) == 3


def test_outside_of_a_rank_and_without_parameters_nothing_is_told(sent, monkeypatch):
    nothing = nn.ReLU()
    verify_replicas(nothing)
    for _ in range(3):
        nothing(torch.ones(1))
    monkeypatch.setattr(replicas, "_send", None)
    model = nn.Linear(3, 2)
    verify_replicas(model)
    trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    assert sent == []


def loop(model, **options):
    rows = [{"features": torch.ones(2, 3), "label": torch.zeros(2, 1)}] * 24
    optimizer = partial(torch.optim.SGD, lr=0.1)
    trainer = Trainer(model, optimizer, nn.functional.mse_loss, **options)
    trainer.fit(rows, epochs=1)
    return trainer


def test_a_trainer_tells_after_its_steps_and_leaves_the_model_as_it_is(sent):
    trainer = loop(nn.Linear(3, 1), verify_replicas_every_steps=5)
    assert [one["step"] for one in sent] == [2, 5, 10, 15, 20]
    assert not any(one["ends_run"] for one in sent)
    assert sent[0]["names"] == ["weight", "bias"]
    assert not trainer.model._forward_pre_hooks, "a model with hooks could not be saved"
    first = len(sent)
    loop(nn.Linear(3, 1), verify_replicas_every_steps=5, gradient_accumulation_steps=4)
    assert [one["step"] for one in sent[first:]] == [2, 5], "passes without an allreduce are none"


def test_a_trainer_tells_nothing_if_it_is_not_to(sent):
    loop(nn.Linear(3, 1), verify_replicas_every_steps=None)
    assert sent == []
    with pytest.raises(ValueError, match="every_steps is 0"):
        loop(nn.Linear(3, 1), verify_replicas_every_steps=0)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="every_steps is 0"):
        verify_replicas(nn.Linear(1, 1), every_steps=0)
    with pytest.raises(TypeError, match=r"every_steps is 1\.5"):
        verify_replicas(nn.Linear(1, 1), every_steps=1.5)

"""What each rank of a sharded model writes and reads back, without any process beside this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from sparkdl_runner.checkpoint import sharded
from sparkdl_runner.checkpoint.directory.shards import merge

WHOLE = torch.arange(20.0).reshape(5, 4)
NUMBERS = torch.tensor([7.0, 8.0])


@contextmanager
def as_rank(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def in_rows(rank: int, size: int, whole: torch.Tensor) -> DTensor:
    """This rank's rows of a tensor; the last ranks may have fewer."""
    mine = (*whole.chunk(size), *[whole[:0]] * size)[rank].clone()
    mesh = init_device_mesh("cpu", (size,))
    return DTensor.from_local(
        mine, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


def state_of(rank: int, size: int, whole: torch.Tensor, numbers: torch.Tensor) -> dict[str, Any]:
    return {
        "model.weight": in_rows(rank, size, whole),
        "model.bias": numbers.clone(),
        "optimizer.param_groups.weight.lr": 0.5,
    }


def saved_by(size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The list of blocks, and the content of each rank's file."""
    parts, contents = [], {}
    for rank in range(size):
        with as_rank(rank, size):
            state = state_of(rank, size, WHOLE, NUMBERS)
            own, shared = sharded.keys_of(state, size)
            written = own | shared if rank == 0 else own
            content, about = sharded.own_part(state, rank, written)
            parts.append(about)
            (path,) = {
                one["path"] for tensor in about["tensors"].values() for one in tensor["shards"]
            } or {f"sharded/rank-{rank}.safetensors"}
            contents[path] = content
    return merge(parts), contents


def test_a_rank_writes_its_own_rows_and_one_writes_what_all_have() -> None:
    metadata, contents = saved_by(2)
    blocks = {
        key: block.tolist()
        for content in contents.values()
        for key, block in content["tensors"].items()
    }
    assert blocks == {
        "model.weight@0,0": WHOLE[:3].tolist(),
        "model.weight@3,0": WHOLE[3:].tolist(),
        "model.bias@0": [7.0, 8.0],
    }
    assert metadata["tensors"]["model.weight"]["shape"] == [5, 4]
    assert sharded.parameters_of(metadata) == {
        "weight": {"shape": [5, 4], "dtype": "float32"},
        "bias": {"shape": [2], "dtype": "float32"},
    }
    first, second = sorted(contents)
    values = metadata["values"]
    assert values == {
        "optimizer.param_groups.weight.lr": {
            "path": first,
            "key": "optimizer.param_groups.weight.lr",
        }
    }
    assert contents[first]["values"] == {"optimizer.param_groups.weight.lr": 0.5}
    assert contents[second]["values"] == {}


@pytest.mark.parametrize(("wrote", "read"), [(2, 3), (6, 2)])
def test_another_number_of_ranks_reads_the_rows_that_each_needs(wrote: int, read: int) -> None:
    metadata, contents = saved_by(wrote)
    found = []
    for rank in range(read):
        with as_rank(rank, read):
            state = state_of(rank, read, torch.zeros(5, 4), torch.zeros(2))
            state["optimizer.param_groups.weight.lr"] = 0.0
            needed = sharded.files_needed(metadata, state)
            sharded.fill(metadata, state, {path: contents[path] for path in needed})
            found.append(state["model.weight"].to_local())
            assert torch.equal(state["model.bias"], NUMBERS)
            assert state["optimizer.param_groups.weight.lr"] == 0.5
    assert torch.equal(torch.cat(found), WHOLE)


def test_a_rank_reads_no_file_that_has_nothing_for_it() -> None:
    metadata, contents = saved_by(2)
    first, second = sorted(contents)
    with as_rank(0, 5):
        state = {"model.weight": in_rows(0, 5, WHOLE)}
        assert sharded.files_needed(metadata, state) == [first]
    with as_rank(4, 5):
        state = {"model.weight": in_rows(4, 5, WHOLE)}
        assert sharded.files_needed(metadata, state) == [second]


def test_of_copies_the_first_writes() -> None:
    for rank, writes in ((0, True), (1, True), (2, False), (3, False)):
        with as_rank(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2))
            value = DTensor.from_local(
                torch.ones(2, 4), mesh, [Replicate(), Shard(0)], run_check=False
            )
            own, shared = sharded.keys_of({"model.w": value, "model.n": 1}, 4)
            assert own == ({f"model.w@{2 * rank},0"} if writes else set())
            assert shared == {"model.n"}
            # Of more ranks than the mesh has, another mesh may have the same one.
            own, shared = sharded.keys_of({"model.w": value}, 8)
            assert (own, bool(shared)) == (set(), writes)


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (seed + 1))
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_model_and_optimizer_take_back_what_was_saved_of_others() -> None:
    (model, optimizer), (other, others) = trained(0), trained(1)
    state = sharded.state_of(model, optimizer)
    own, shared = sharded.keys_of(state, 1)
    content, about = sharded.own_part(state, 0, own | shared)
    wanted = sharded.state_of(other, others)
    (path,) = sharded.files_needed(about, wanted)
    sharded.fill(about, wanted, {path: content})
    sharded.set_state(other, others, wanted)
    assert same(other.state_dict(), model.state_dict())
    assert same(others.state_dict(), optimizer.state_dict())
    assert sharded.state_of(None, None) == {}
    assert sharded.model_part(state).keys() == model.state_dict().keys()
    of_optimizer = sharded.optimizer_names(state)
    assert of_optimizer == {name for name in state if not name.startswith("model.")}
    assert sharded.own_optimizer(optimizer) is optimizer


def test_what_was_saved_whole_fills_the_parts_and_a_parameter_without_state_begins_anew() -> None:
    (model, optimizer), (other, others) = trained(0), trained(1)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    del saved["optimizer"]["state"][2]
    wanted = sharded.state_of(other, others)
    sharded.fill_from_whole(wanted, saved)
    sharded.set_state(other, others, wanted)
    assert same(other.state_dict(), model.state_dict())
    found = others.state_dict()
    assert found["param_groups"][0]["lr"] == pytest.approx(0.1)
    assert same(found["state"][0], optimizer.state_dict()["state"][0])
    assert not found["state"][2]["exp_avg"].any()
    wanted = sharded.state_of(other, others)
    sharded.fill_from_whole(wanted, {"model": trained(2)[0].state_dict()})
    assert same(sharded.model_part(wanted), dict(trained(2)[0].state_dict()))


def test_each_rank_takes_its_rows_of_a_tensor_that_was_saved_whole() -> None:
    found = []
    for rank in range(2):
        with as_rank(rank, 2):
            state = {"model.weight": in_rows(rank, 2, torch.zeros(5, 4))}
            sharded.fill_from_whole(state, {"model": {"weight": WHOLE}})
            found.append(state["model.weight"].to_local())
    assert torch.equal(torch.cat(found), WHOLE)


def test_an_optimizers_state_is_named_across_its_groups():
    groups = [{"params": [0, 1], "lr": 0.1}, {"params": [2], "lr": 0.2}]
    found = sharded._by_name({"param_groups": groups, "state": {1: {"step": 4}}}, ["a", "b", "c"])
    rates = {name: found[f"optimizer.param_groups.{name}.lr"] for name in "abc"}
    assert rates == {"a": 0.1, "b": 0.1, "c": 0.2}
    assert found["optimizer.state.b.step"] == 4

"""What ranks do with the recipes of docs/strategies.md, which come as the names of that page."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import mse_loss

from sparkdl_runner.checkpoint import CheckpointManager, CheckpointMismatchError
from sparkdl_runner.launch.backends import get_backend

Losses = dict[int, float]


def in_turn(calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]) -> dict[str, Any]:
    """Calls functions in the same ranks, since to start them takes longest."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return {name: function(*arguments) for name, (function, arguments) in calls.items()}


def one_process(page: dict[str, Any], steps: int, saved: str | None = None) -> Losses:
    """The losses of a process that trains by itself, on all rows, perhaps from a checkpoint on."""
    torch.manual_seed(0)
    model = page["Network"]()
    optimizer = page["adamw"](model.parameters())
    losses: Losses = {}
    step = 0
    all_rows = {"cur_shard": 0, "shard_count": 1, "tail": "drop"}
    with page["data"].make_torch_dataloader(global_batch_size=32, seed=1, **all_rows) as loader:
        if saved is not None:
            with CheckpointManager(saved) as manager:
                step = manager.restore(model, optimizer, loader).step
        for batch in loader:
            loss = mse_loss(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            losses[step] = loss.item()
            if step == steps:
                return losses
    return losses


def interrupted(page: dict[str, Any], recipe: Any, folder: str, *until: int) -> Losses:
    """Trains in several parts, each from the checkpoint of the one before; the losses of all."""
    losses: Losses = {}
    for steps in until:
        found = page["train"](recipe, page["data"], folder, steps)
        assert min(found) == max(losses, default=min(found) - 1) + 1
        losses |= found
    return losses


def on_a_copy(page: dict[str, Any], recipe: Any, saved: str, steps: int) -> Losses:
    """Goes on from another's checkpoints, which stay as they are."""
    copy = f"{saved}-of-{dist.get_world_size()}"
    if dist.get_rank() == 0:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(saved, copy)
    dist.barrier()
    return interrupted(page, recipe, copy, steps)


def bytes_of(tensors: Any) -> int:
    """What the storages of tensors take on this rank."""
    local = [one.to_local() if hasattr(one, "to_local") else one for one in tensors]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in local}
    return sum(storage.nbytes() for storage in storages.values())


def memory(recipe: Any) -> list[int]:
    """Bytes of parameters, gradients and optimizer state of every rank, after a step."""
    model, optimizer, gradients, _ = recipe()
    gradients(torch.randn(8, 8), torch.randn(8, 1))
    optimizer.step()
    parameters = list(model.parameters())
    mine = bytes_of(parameters) + bytes_of([one.grad for one in parameters])
    mine += bytes_of([value for state in optimizer.state.values() for value in state.values()])
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def local_sgd(page: dict[str, Any], steps: int) -> list[list[bool]]:
    """After each step, which ranks have rank 0's weights, to float noise."""
    torch.manual_seed(0)
    model, optimizer, gradients, _ = page["post_local_sgd"](warmup=2, period=2)
    found = []
    for step in range(steps):
        torch.manual_seed(10 * step + dist.get_rank())
        gradients(torch.randn(8, 8), torch.randn(8, 1))
        optimizer.step()
        optimizer.zero_grad()
        flat = torch.cat([one.detach().flatten() for one in model.parameters()])
        everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, flat)
        found.append([torch.allclose(one, everyone[0], atol=1e-6) for one in everyone])
    return found


def uneven(page: dict[str, Any]) -> dict[str, Any]:
    """Weights after an epoch of uneven batches, and those of one process that has done the same."""
    model, seen = page["one_uneven_epoch"](page["data"])
    torch.manual_seed(0)
    alone = page["Network"]()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    size = dist.get_world_size()
    options = {"global_batch_size": 292, "num_epochs": 1, "tail": "uneven"}
    with page["data"].make_torch_dataloader(**options, shard_by=dist.group.WORLD) as loader:
        batches = [(batch["x"], batch["y"]) for batch in loader]
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, batches)
    for shares in zip(*everyone, strict=True):
        loss = sum(mse_loss(alone(x), y) for x, y in shares if len(y)) / size
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    apart = [
        float((one - other).detach().abs().max())
        for one, other in zip(model.module.parameters(), alone.parameters(), strict=True)
    ]
    return {"apart": max(apart), "seen": seen, "last": [len(one[-1][1]) for one in everyone]}


def saved_as_parts(page: dict[str, Any], folder: str, pipeline: str) -> list[list[str]]:
    """What each rank is told of a stage without names of its own, and of a network too small."""
    torch.manual_seed(dist.get_rank())
    with warnings.catch_warnings(record=True) as told, CheckpointManager(folder) as manager:
        warnings.simplefilter("always")
        manager.save(1, torch.nn.Sequential(torch.nn.Linear(2, 2)))
    mine = [str(one.message) for one in told]
    small = page["Network"]()
    del small.layers["last"]
    with CheckpointManager(pipeline) as manager:
        try:
            manager.restore(small)
        except CheckpointMismatchError as error:
            mine.append(str(error))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def context_parallel_without_a_gpu() -> str:
    """What the run says of the error that torch raises then."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    parts = [torch.randn(1, 2, 16, 8) for _ in range(3)]
    try:
        with context_parallel(mesh["cp"], buffers=parts, buffer_seq_dims=[2, 2, 2]):
            torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
    except Exception as error:
        return get_backend("torch").advice(error)
    return "no error"

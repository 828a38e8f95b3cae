"""What ranks do in the tests of GPUs, on their GPU or on the CPU where there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sparkdl_runner.checkpoint import CheckpointManager

LAYERS, STEPS, ROWS = 8, 5, 64


def own_device() -> torch.device:
    """The GPU of this rank's local rank, in turn where there are fewer GPUs than ranks."""
    count = torch.cuda.device_count()
    if count == 0:
        return torch.device("cpu")
    index = int(os.environ["LOCAL_RANK"]) % count
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def join(backend: str) -> torch.device:
    """Joins the other ranks."""
    device = own_device()
    bound = {"device_id": device} if backend == "nccl" else {}
    dist.init_process_group(backend, timeout=timedelta(seconds=60), **bound)
    return device


def of_all_ranks(value: torch.Tensor) -> list[torch.Tensor]:
    """One tensor of each rank, by way of the CPU: gloo gathers no tensors of a GPU."""
    group = dist.new_group(backend="gloo")
    mine = value.detach().float().cpu()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine, group=group)
    return parts


def all_reduced(backend: str) -> dict[str, Any]:
    """Adds up a tensor of each rank."""
    device = join(backend)
    value = torch.full((1000,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(value)
    found = {"values": set(value.tolist()), "device": str(device), "backend": dist.get_backend()}
    dist.destroy_process_group()
    return found


def network(width: int, device: torch.device) -> nn.Module:
    """The same numbers on every rank."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
    return nn.Sequential(*layers).to(device, torch.bfloat16)


def trained(backend: str) -> dict[str, Any]:
    """Some steps of DistributedDataParallel in bfloat16, each rank on rows of its own.

    Returns:
        ``gradients`` after the first step, of rank 0, and ``expected``, the mean of what each rank
        has by itself; ``weights`` of every rank at the end; ``step_seconds`` of a step, and
        ``alone_seconds`` of one without other ranks.
    """
    device = join(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    width = 4096 if device.type == "cuda" else 64
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(size, ROWS, width, generator=generator).to(device, torch.bfloat16)

    def step(model: nn.Module, of_rank: int) -> None:
        model.zero_grad()
        model(rows[of_rank]).float().square().sum().backward()

    def timed(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            step(model, rank)
            if optimizer is not None:
                optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / STEPS

    alone = network(width, device)
    expected = torch.zeros(ROWS, width)
    for one in range(size):
        step(alone, one)
        expected += alone[0].weight.grad[:ROWS].float().cpu() / size
    model = nn.parallel.DistributedDataParallel(network(width, device))
    step(model, rank)
    gradients = model.module[0].weight.grad[:ROWS].float().cpu()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step_seconds = timed(model, optimizer)
    weights = of_all_ranks(model.module[0].weight[:ROWS])
    found = {
        "gradients": gradients,
        "expected": expected,
        "weights": weights,
        "first_weights": alone[0].weight[:ROWS].detach().float().cpu(),
        "step_seconds": step_seconds,
        "alone_seconds": timed(alone, None),
    }
    dist.destroy_process_group()
    return found


def uuids(gpus: Iterable[int]) -> list[str]:
    """The UUIDs of some of the GPUs that this process sees, without the ``GPU-`` before them."""
    found = (str(torch.cuda.get_device_properties(index).uuid) for index in gpus)
    return [uuid.removeprefix("GPU-") for uuid in found]


def visible_gpus() -> list[dict[str, Any]]:
    """Which GPUs each rank was told of, and which it sees, by their UUIDs."""
    seen = uuids(range(torch.cuda.device_count()))
    mine = {"told": os.environ.get("CUDA_VISIBLE_DEVICES"), "seen": seen}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    together: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(together, mine)
    dist.destroy_process_group()
    return together


def fill_the_gpu() -> None:
    """Asks for more memory than any GPU has; without one, raises what torch would."""
    device = own_device()
    if device.type == "cuda":
        torch.empty(1 << 46, dtype=torch.uint8, device=device)
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 65536.00 GiB.")


def random_numbers(directory: str) -> torch.Tensor:
    """Restores the newest checkpoint, or saves the first one; then draws from the generator."""
    device = own_device()
    with CheckpointManager(directory) as checkpoints:
        if checkpoints.restore() is None:
            torch.rand(5, device=device)
            checkpoints.save(1)
            checkpoints.wait()
        drawn = torch.rand(1000, device=device)
        return torch.cat([drawn, nn.functional.dropout(drawn)]).cpu()


def checkpointed(directory: str, sharded: bool, backend: str = "nccl") -> bool:
    """Saves and restores beside NCCL, which cannot carry what ranks say of checkpoints."""
    device = join(backend)
    model, other = network(256, device), network(256, device)
    if sharded:
        from torch.distributed.fsdp import fully_shard

        model, other = fully_shard(model), fully_shard(other)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 256, device=device, dtype=torch.bfloat16)).float().sum().backward()
    optimizer.step()
    into = torch.optim.Adam(other.parameters())
    with CheckpointManager(directory) as checkpoints:
        checkpoints.restore()
        checkpoints.save(1, model, optimizer)
        checkpoints.wait()
        checkpoints.restore(other, into)
    equal = all(
        torch.equal(_whole(one), _whole(two))
        for one, two in zip(model.parameters(), other.parameters(), strict=True)
    )
    dist.destroy_process_group()
    return equal


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

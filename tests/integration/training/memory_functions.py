"""Functions of ranks that measure what a training takes: the kernel's count of resident memory."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WORDS, WIDTH = 4000, 256


def dense() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(1536, 1536), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1536, 10))


def convolutional() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        values = self.embedding(words)
        for block in self.blocks:
            values = block(values)
        return self.head(values)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "convolutional": convolutional,
    "transformer": Transformer,
}


def batch_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "dense":
        return torch.randn(16, 1536), torch.randint(10, (16,))
    if name == "convolutional":
        return torch.randn(8, 3, 128, 128), torch.randint(10, (8,))
    return torch.randint(WORDS, (2, 128)), torch.randint(WORDS, (2, 128))


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, wanted = batch
    return loss_of_scores(model(inputs), wanted)


def loss_of_scores(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, -2), wanted.flatten())


STRATEGIES = ("alone", "ddp", "zero1", "fsdp2", "tensor")
BF16 = ("alone", "ddp", "fsdp2")


def measured_bytes() -> dict[tuple[str, str], int]:
    """The peak of a step beyond what was there before, by model and strategy: of the worst rank."""
    # Larger blocks go back to the kernel when they are freed, so that its count is the tensors'.
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 16)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name in MODELS:
        for bf16 in (False, True):  # Libraries set up what they keep.
            _training(name, "alone", bf16)()
        for strategy in STRATEGIES:
            found[name, strategy] = _peak_bytes(partial(_training, name, strategy))
        for strategy in BF16:
            found[name, f"{strategy}, bf16"] = _peak_bytes(partial(_training, name, strategy, True))
        if name != "convolutional":  # Batch normalization would see micro-batches.
            middle = len(_parts(MODELS[name]())) // 2
            found[name, "pipeline"] = min(
                _peak_bytes(partial(_pipeline, name, cut)) for cut in (middle, middle + 1)
            )
    dist.destroy_process_group()
    return found


def _peak_bytes(prepare: Callable[[], Callable[[], None]]) -> int:
    gc.collect()
    before = _resident_bytes("VmRSS")
    step = prepare()
    for _ in range(2):  # In the second, DDP makes its buckets anew.
        step()
    gc.collect()
    with open("/proc/self/clear_refs", "w") as counters:
        counters.write("5")  # Begins the peak anew.
    step()
    peak = torch.tensor(_resident_bytes("VmHWM") - before)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return int(peak)


def _training(name: str, strategy: str, bf16: bool = False) -> Callable[[], None]:
    network, optimizer = _prepared(MODELS[name](), strategy)
    batch = batch_of(name)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = loss_of(network, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _prepared(model: nn.Module, strategy: str) -> tuple[nn.Module, Any]:
    network = model
    if strategy in ("ddp", "zero1"):
        network = nn.parallel.DistributedDataParallel(model)
    if strategy == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        from sparkdl_runner.training.loop.ranks import units

        for unit in units(model):
            fully_shard(unit)
        fully_shard(model)
    if strategy == "tensor":
        _divide(model)
    if strategy == "zero1":
        return network, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    # One call for many tensors (foreach) does not take DTensors and others together.
    return network, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def _divide(model: nn.Module) -> None:
    """Divides pairs of matrices, embeddings, and the last matrix."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    last = ColwiseParallel(output_layouts=Replicate())
    plan: dict[str, Any] = {}
    for part, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            plan[part] = RowwiseParallel(input_layouts=Replicate())
        if isinstance(module, nn.TransformerEncoderLayer):
            plan |= {f"{part}.linear1": ColwiseParallel(), f"{part}.linear2": RowwiseParallel()}
    matrices = [part for part, one in model.named_children() if isinstance(one, nn.Linear)]
    plan |= dict(zip(matrices, itertools.cycle([ColwiseParallel(), RowwiseParallel()])))
    parallelize_module(model, mesh, plan | {matrices[-1]: last})


def _parts(model: nn.Module) -> list[nn.Module]:
    if isinstance(model, Transformer):
        return [model.embedding, *model.blocks, model.head]
    return list(model.children())


def _pipeline(name: str, cut: int) -> Callable[[], None]:
    """GPipe of two ranks, of which the first has so many parts of the model."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = _parts(MODELS[name]())
    stage_model = nn.Sequential(*(parts[cut:] if rank else parts[:cut]))
    stage = PipelineStage(stage_model, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=size, loss_fn=loss_of_scores)
    optimizer = torch.optim.AdamW(stage_model.parameters(), lr=1e-3)
    inputs, wanted = batch_of(name)

    def step() -> None:
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=wanted)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _resident_bytes(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

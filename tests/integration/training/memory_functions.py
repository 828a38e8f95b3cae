"""Functions of ranks that measure what a training takes: the kernel's count of resident memory."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

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
        return torch.randn(256, 1536), torch.randint(10, (256,))
    if name == "convolutional":
        return torch.randn(16, 3, 128, 128), torch.randint(10, (16,))
    return torch.randint(WORDS, (4, 128)), torch.randint(WORDS, (4, 128))


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, wanted = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), wanted.flatten())


def measured_bytes() -> dict[tuple[str, str], int]:
    """The peak of a step beyond what was there before, by model and strategy."""
    # Larger blocks go back to the kernel when they are freed, so that its count is the tensors'.
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 16)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name in MODELS:
        _step(
            *_prepared(MODELS[name](), "alone"), batch_of(name)
        )  # Libraries set up what they keep.
        for strategy in ("alone", "ddp", "zero1", "fsdp2"):
            found[name, strategy] = _peak_bytes(name, strategy)
    dist.destroy_process_group()
    return found


def _peak_bytes(name: str, strategy: str) -> int:
    gc.collect()
    before = _resident_bytes("VmRSS")
    model = MODELS[name]()
    batch = batch_of(name)
    network, optimizer = _prepared(model, strategy)
    for _ in range(2):  # In the second, DDP makes its buckets anew.
        _step(network, optimizer, batch)
    gc.collect()
    with open("/proc/self/clear_refs", "w") as counters:
        counters.write("5")  # Begins the peak anew.
    _step(network, optimizer, batch)
    return _resident_bytes("VmHWM") - before


def _prepared(model: nn.Module, strategy: str) -> tuple[nn.Module, Any]:
    network = model
    if strategy in ("ddp", "zero1"):
        network = nn.parallel.DistributedDataParallel(model)
    if strategy == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        from sparkdl_runner.training.sharded import units

        for unit in units(model):
            fully_shard(unit)
        fully_shard(model)
    if strategy == "zero1":
        return network, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    return network, torch.optim.AdamW(model.parameters(), lr=1e-3)


def _step(network: nn.Module, optimizer: Any, batch: Any) -> None:
    loss_of(network, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def _resident_bytes(field: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

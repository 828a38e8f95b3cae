"""A training that takes milliseconds, and all that makes it differ if a step is off by a bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyarrow import fs

from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.data.batches.loader import ArrowLoader
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.manifest import Manifest


class Training:
    """Dropout, batch normalization and Adam, on data from torch's own generator."""

    def __init__(self, width: int = 4) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(width, 4),
            torch.nn.BatchNorm1d(4),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(4, 1),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.width = width

    def step(self, batch: torch.Tensor | None = None) -> None:
        if batch is None:
            batch = torch.randn(8, self.width)
        self.optimizer.zero_grad()
        self.model(batch).square().sum().backward()
        self.optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether all tensors are equal bit for bit."""
    return one.keys() == other.keys() and all(
        value.dtype == other[name].dtype
        and torch.equal(value.view(torch.uint8), other[name].view(torch.uint8))
        if value.dim()
        else torch.equal(value, other[name])
        for name, value in one.items()
    )


def save_steps(directory: Path | str, *steps: int, **settings: Any) -> dict[int, Any]:
    """Trains and saves some steps; returns the weights at each."""
    weights = {}
    with CheckpointManager(directory, keep_last=10, **settings) as checkpoints:
        checkpoints.restore()
        torch.manual_seed(1)
        training = Training()
        for step in range(1, max(steps) + 1):
            training.step()
            if step in steps:
                weights[step] = training.weights()
                checkpoints.save(step, training.model, training.optimizer, extra={"step": step})
    return weights


def write_rows(directory: Path) -> None:
    """Writes 40 vectors of 4 numbers as a data set."""
    vectors = np.arange(160, dtype=np.float32).reshape(40, 4)
    table = pa.table({"vector": pa.array(list(vectors), pa.list_(pa.float32()))})
    pq.write_table(table, directory / "part-0.parquet", row_group_size=16)
    local = fs.LocalFileSystem()
    describe_parquet(local, str(directory), ["part-0.parquet"]).write(local, str(directory))


def open_loader(directory: Path) -> ArrowLoader:
    """Opens what ``write_rows`` wrote."""
    local = fs.LocalFileSystem()
    manifest = Manifest.read(local, str(directory))
    return ArrowLoader(manifest, local, str(directory), batch_size=8, num_epochs=None, seed=5)

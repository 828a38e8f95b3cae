"""Batches on a real GPU: the same values as on a CPU, copied ahead of the step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "data"))

from parquet_sets import load, numbered, one

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
def test_batches_equal_those_on_a_cpu(tmp_path: Path, tail: str) -> None:
    manifest = one(tmp_path, numbered(20_000, width=64), 1_000)
    arguments = {"batch_size": 96, "tail": tail, "prefetch_batches": 4, "num_epochs": 2}
    with load(tmp_path, manifest, **arguments) as loader:
        expected = list(loader)
    with load(tmp_path, manifest, device="cuda", **arguments) as loader:
        found = list(loader)
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        for name, tensor in batch.items():
            assert tensor.is_cuda
            assert torch.equal(tensor.cpu(), other[name])


def test_a_slow_step_never_sees_the_memory_of_a_later_one(tmp_path: Path) -> None:
    manifest = one(tmp_path, numbered(50_000, width=64), 2_000)
    weight = torch.randn(4096, 4096, device="cuda")
    sums = []
    with load(tmp_path, manifest, batch_size=100, device="cuda", prefetch_batches=4) as loader:
        for batch in loader:
            weight = torch.tanh(weight @ weight)  # keeps the stream behind the host
            sums.append((batch["vector"][:, 0] - batch["id"]).abs().sum() + 0 * weight[0, 0])
    assert torch.stack(sums).sum().item() == 0


def test_transforms_and_ragged_columns_reach_the_gpu(tmp_path: Path) -> None:
    import pyarrow as pa

    table = numbered(1_000).append_column(
        "list", pa.array([list(range(i % 4)) for i in range(1_000)])
    )
    manifest = one(tmp_path, table, 100)
    with load(tmp_path, manifest, batch_size=50, device="cuda", ragged=["list"]) as loader:
        for batch in loader:
            assert batch["list"].is_cuda
            assert batch["list_offsets"].is_cuda
            assert (batch["list_offsets"].diff() == batch["id"] % 4).all()


def test_a_transform_on_the_gpu_is_done_before_the_step_begins(tmp_path: Path) -> None:
    manifest = one(tmp_path, numbered(20_000, width=64), 1_000)
    weight = torch.randn(4096, 4096, device="cuda")

    def on_gpu(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        slow = weight
        for _ in range(5):  # keeps the stream that copies behind the host
            slow = torch.tanh(slow @ slow)
        ids = batch["id"].to("cuda", non_blocking=True)
        return {"id": batch["id"], "twice": 2 * ids + (0 * slow[0, 0]).long()}

    with load(tmp_path, manifest, batch_size=100, device="cuda", transform=on_gpu) as loader:
        wrong = [(batch["twice"] != 2 * batch["id"]).sum() for batch in loader]
    assert torch.stack(wrong).sum().item() == 0

"""The ring that feeds a GPU, with ordinary memory in the place of pinned memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parquet_sets import load, numbered, one

from sparkdl_runner.data.batches.device import HostMemory, PinnedRing, memory_for
from sparkdl_runner.data.dataset.manifest import Manifest


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return one(tmp_path, numbered(300), 20)


def batches(
    directory: Path, manifest: Manifest, ring: PinnedRing | None, **arguments: Any
) -> list[dict[str, Any]]:
    with load(directory, manifest, batch_size=8, prefetch_batches=2, **arguments) as loader:
        if ring is not None:
            loader._pipeline.memory = ring
        return list(loader)  # kept, so that memory that is used again shows


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
def test_reused_memory_is_never_handed_out(tmp_path: Path, manifest: Manifest, tail: str) -> None:
    expected = batches(tmp_path, manifest, None, tail=tail)
    ring = PinnedRing(torch.device("cpu"), slots=2)
    found = batches(tmp_path, manifest, ring, tail=tail)
    assert len(found) == len(expected) > 10
    for one_batch, other in zip(found, expected, strict=True):
        assert one_batch.keys() == other.keys()
        assert all(torch.equal(one_batch[name], other[name]) for name in other)


def test_the_ring_does_not_grow(tmp_path: Path, manifest: Manifest) -> None:
    ring = PinnedRing(torch.device("cpu"), slots=2)
    batches(tmp_path, manifest, ring)
    memory = [{n: t.data_ptr() for n, t in slot.pinned.items()} for slot in ring._slots]
    batches(tmp_path, manifest, ring, num_epochs=3)
    assert memory == [{n: t.data_ptr() for n, t in slot.pinned.items()} for slot in ring._slots]


def test_transformed_batches_go_through_the_ring(tmp_path: Path, manifest: Manifest) -> None:
    def halve(batch: dict[str, Any]) -> dict[str, Any]:
        return {"half": batch["value"] / 2, "name": "not a tensor"}

    ring = PinnedRing(torch.device("cpu"), slots=2)
    found = batches(tmp_path, manifest, ring, transform=halve, tail="uneven")
    assert sorted(torch.cat([batch["half"] for batch in found]).tolist()) == list(range(300))
    assert {batch["name"] for batch in found} == {"not a tensor"}


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_a_cpu_needs_no_ring(device: Any) -> None:
    assert isinstance(memory_for(device), HostMemory)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"device='cuda', and torch .* sees no GPU here"):
        memory_for("cuda")


def test_a_column_may_be_called_like_anything(tmp_path: Path) -> None:
    table = numbered(40).append_column("4 bytes", numbered(40)["value"])
    manifest = one(tmp_path, table, 20)
    ring = PinnedRing(torch.device("cpu"), slots=2)
    for batch in batches(tmp_path, manifest, ring):
        assert torch.equal(batch["4 bytes"], batch["value"])

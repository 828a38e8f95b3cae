"""Ranks of the local launcher on a GPU: collectives, training in bfloat16, and who sees what."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import rank_work
import torch

from sparkdl_runner import DistributedRunner, WorkerFailedError
from sparkdl_runner.launch.backends import Rendezvous
from sparkdl_runner.launch.backends.torch_backend import TorchBackend
from sparkdl_runner.rank.world import World

NCCL_ALONE = pytest.param("nccl", 1, marks=pytest.mark.gpu, id="nccl-one-rank")
# NCCL refuses two ranks on one GPU.
GLOO_TWICE = pytest.param("gloo", 2, id="gloo-two-ranks")


def run(ranks: int, function: Any, **arguments: Any) -> Any:
    return DistributedRunner(num_proc=-ranks, backend="torch").run(function, **arguments)


@pytest.mark.gpu
@pytest.mark.parametrize(("collectives", "ranks"), [NCCL_ALONE, GLOO_TWICE])
def test_values_are_added_up(device, figure, collectives: str, ranks: int) -> None:
    start = time.perf_counter()
    found = run(ranks, rank_work.all_reduced, backend=collectives)
    figure(
        f"call to result, an all_reduce by {collectives}, {ranks} rank(s)",
        time.perf_counter() - start,
        "s",
    )
    assert found["values"] == {sum(range(1, ranks + 1))}
    assert found["backend"] == collectives
    assert found["device"].startswith(device.type)


@pytest.mark.parametrize(("collectives", "ranks"), [NCCL_ALONE, GLOO_TWICE])
def test_training_in_bfloat16(device, figure, collectives: str, ranks: int) -> None:
    found = run(ranks, rank_work.trained, backend=collectives)
    scale = found["expected"].abs().max().item()
    assert scale > 0
    torch.testing.assert_close(found["gradients"], found["expected"], rtol=0.05, atol=0.02 * scale)
    first, *others = found["weights"]
    assert len(others) == ranks - 1
    assert all(torch.equal(first, other) for other in others)
    assert first.isfinite().all()
    assert not torch.equal(first, found["first_weights"])
    figure(
        f"DDP step in bfloat16, {collectives}, {ranks} rank(s), {device.type}",
        1000 * found["step_seconds"],
        "ms",
        f"without ranks: {1000 * found['alone_seconds']:.1f} ms",
    )


@pytest.mark.gpu
def test_each_rank_has_the_gpus_that_it_is_given(device, monkeypatch) -> None:
    # As an agent on Spark does it: in the worker's environment, after it has imported torch.
    (uuid,) = rank_work.uuids([device.index])
    given = [f"GPU-{uuid}", ""]
    environment = TorchBackend.environment

    def with_gpus(self: TorchBackend, world: World, rendezvous: Rendezvous) -> dict[str, str]:
        told = {"CUDA_VISIBLE_DEVICES": given[world.rank]}
        return {**environment(self, world, rendezvous), **told}

    monkeypatch.setattr(TorchBackend, "environment", with_gpus)
    found = run(2, rank_work.visible_gpus)
    assert [one["told"] for one in found] == given
    assert [one["seen"] for one in found] == [[uuid], []]


def test_a_gpu_without_memory_is_named(device) -> None:
    with pytest.raises(WorkerFailedError) as raised:
        run(1, rank_work.fill_the_gpu)
    text = str(raised.value)
    assert "raised OutOfMemoryError: CUDA out of memory. Tried to allocate" in text
    assert "The memory of this rank's GPU ran out, not that of its host" in text
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)


def test_generators_go_on_bit_for_bit_in_a_new_process(device, tmp_path: Path) -> None:
    first = run(1, rank_work.random_numbers, directory=str(tmp_path))
    again = run(1, rank_work.random_numbers, directory=str(tmp_path))
    assert first.unique().numel() > 900
    assert torch.equal(first, again)


@pytest.mark.gpu
@pytest.mark.parametrize("sharded", [False, True])
def test_checkpoints_beside_nccl(tmp_path: Path, sharded: bool) -> None:
    assert run(1, rank_work.checkpointed, directory=str(tmp_path), sharded=sharded)

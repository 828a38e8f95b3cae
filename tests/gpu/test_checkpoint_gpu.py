"""Checkpoints of a GPU's tensors: copies that are right and pinned, and how long a step waits."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

import cuda_clock
import pytest
import torch
from torch import nn

from sparkdl_runner.checkpoint import CheckpointManager, generators
from sparkdl_runner.checkpoint.save.host_copies import HostCopies

LAYER_BYTES, LAYERS, SAVES = 64 << 20, 32, 2


def tensors(device: torch.device) -> dict[str, torch.Tensor]:
    """One of each kind that lies in memory in a way of its own."""
    images = torch.randn(2, 3, 8, 8, device=device)
    return {
        "bfloat16": torch.randn(64, 32, device=device, dtype=torch.bfloat16),
        "channels last": images.to(memory_format=torch.channels_last),
        "transposed": torch.randn(16, 48, device=device).t(),
        "a part": torch.randn(64, 64, device=device)[::2, 5:20],
        "one number": torch.tensor(3.5, device=device),
        "nothing": torch.empty(0, 4, device=device),
        "whole numbers": torch.arange(100, device=device),
    }


def test_copies_are_equal_and_stay_as_they_were(device) -> None:
    sources = tensors(device)
    expected = {name: tensor.cpu().clone() for name, tensor in sources.items()}
    copies = HostCopies()
    for _ in range(2):  # The second time, into the buffers of the first.
        copies.begin()
        found = {name: copies.copy(tensor) for name, tensor in sources.items()}
        again = copies.copy(sources["bfloat16"])
        copies.end()
        for tensor in sources.values():
            tensor.zero_()
        for name, tensor in expected.items():
            assert found[name].device.type == "cpu"
            assert torch.equal(found[name], tensor), name
            assert found[name].is_pinned() == (device.type == "cuda" and tensor.numel() > 0), name
            sources[name].copy_(tensor)
        assert again is found["bfloat16"]


@pytest.mark.gpu
def test_copies_wait_for_what_is_still_being_computed(device) -> None:
    weight = torch.randn(4096, 4096, device=device)
    copies = HostCopies()
    for number in range(5):
        slow = weight
        for _ in range(10):
            slow = torch.tanh(slow @ slow)
        late = torch.full((1 << 20,), float(number), device=device) + 0 * slow[0, 0]
        copies.begin()
        copy = copies.copy(late)
        copies.end()
        assert (copy == number).all()


def test_generators_go_on_bit_for_bit(device) -> None:
    torch.rand(3, device=device)
    state = generators.capture()
    assert ("cuda" in state) == (device.type == "cuda")
    first = torch.rand(1000, device=device), torch.rand(10)
    generators.put_back(state)
    again = torch.rand(1000, device=device), torch.rand(10)
    assert all(map(torch.equal, first, again))


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_how_long_a_save_of_2_gb_blocks(device, figure, tmp_path: Path) -> None:
    width = int((LAYER_BYTES / 4) ** 0.5)
    size_bytes = LAYERS * LAYER_BYTES
    free = shutil.disk_usage(tmp_path).free
    if free < 6 * size_bytes:
        pytest.skip(f"needs {6 * size_bytes:,} bytes in {tmp_path}, and {free:,} are free")
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(LAYERS)]).to(device)
    blocked: dict[bool, list[float]] = {True: [], False: []}
    for asynchronous, seconds in blocked.items():
        directory = tmp_path / str(asynchronous)
        with CheckpointManager(directory, keep_last=1, asynchronous=asynchronous) as checkpoints:
            for step in range(1, SAVES + 2):
                torch.cuda.synchronize()
                start = time.perf_counter()
                checkpoints.save(step, model)
                seconds.append(time.perf_counter() - start)
                checkpoints.wait()
            weights = [layer.weight.detach().clone() for layer in model]
            for layer in model:
                layer.weight.data.zero_()
            checkpoints.restore(model)
            assert all(torch.equal(layer.weight, weights[i]) for i, layer in enumerate(model))
        shutil.rmtree(directory)
    # The first save of a manager also makes its pinned memory.
    later, synchronous = (statistics.median(blocked[kind][1:]) for kind in (True, False))
    beside = f"a synchronous save: {synchronous:.2f} s"
    figure("blocked by an asynchronous save of 2 GB", later, "s", beside)
    figure("blocked by the first one", blocked[True][0], "s", beside)
    figure("a synchronous save of 2 GB", synchronous, "s", "")


@pytest.mark.gpu
def test_how_fast_copies_are(device, figure) -> None:
    source = torch.ones(1 << 30, dtype=torch.uint8, device=device)
    pinned = torch.empty(source.shape, dtype=torch.uint8, pin_memory=True)
    plain = cuda_clock.median_seconds(lambda: pinned.copy_(source, non_blocking=True))
    copies = HostCopies()

    def take() -> None:
        copies.begin()
        copies.copy(source)
        copies.end()

    seconds = cuda_clock.median_seconds(take)
    figure(
        "a checkpoint's copy from the GPU",
        len(source) / seconds / 1e9,
        "GB/s",
        f"plain copy to pinned memory: {len(source) / plain / 1e9:.1f} GB/s",
    )

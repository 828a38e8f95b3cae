"""How fast batches reach a GPU, beside what the card itself can do, and what a step waits for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuda_clock
import numpy as np
import pytest
import torch

from sparkdl_runner.data.batches.device import PinnedRing

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "data"))

from parquet_sets import load, numbered, one

pytestmark = pytest.mark.gpu

COPY_BYTES = 256 << 20
ROWS, WIDTH, BATCH, EPOCHS = 200_000, 256, 4096, 4


def rate(size_bytes: float, seconds: float) -> float:
    """Gigabytes a second."""
    return size_bytes / seconds / 1e9


@pytest.fixture(scope="module")
def card_rate(device: torch.device) -> float:
    """What one plain copy of pinned memory to the GPU reaches."""
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device=device)
    seconds = cuda_clock.median_seconds(lambda: there.copy_(host, non_blocking=True))
    return rate(COPY_BYTES, seconds)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A data set of 200 MB of vectors."""
    directory = tmp_path_factory.mktemp("rows")
    return directory, one(directory, numbered(ROWS, width=WIDTH), 10_000)


def test_plain_copies(device, card_rate, figure) -> None:
    figure("plain copy of pinned memory to the GPU", card_rate, "GB/s", "the card's own")
    pageable = torch.ones(COPY_BYTES, dtype=torch.uint8)
    there = torch.empty_like(pageable, device=device)
    seconds = cuda_clock.median_seconds(lambda: there.copy_(pageable))
    assert torch.equal(there.cpu(), pageable)
    beside = f"pinned: {card_rate:.1f} GB/s"
    figure("plain copy of pageable memory to the GPU", rate(COPY_BYTES, seconds), "GB/s", beside)


def test_the_ring_alone(device, card_rate, figure) -> None:
    chunk, turns = (16384, 1024), 40
    ring = PinnedRing(device)

    def send() -> Any:
        ring.begin()
        array = ring.empty("rows", chunk, np.dtype(np.float32))
        batch = {"rows": torch.from_numpy(array)}
        ring.receive(batch, ring.send([batch]))
        return batch["rows"]

    for _ in range(4):  # Each slot makes its memory once.
        send()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(turns):
        last = send()
    torch.cuda.synchronize()
    found = rate(turns * last.nbytes, time.perf_counter() - start)
    figure("the loader's ring alone, to the GPU", found, "GB/s", f"card: {card_rate:.1f} GB/s")


class TimedRing(PinnedRing):
    """A ring that notes when its stream copies."""

    def __init__(self, device: torch.device, spans: cuda_clock.Spans) -> None:
        super().__init__(device)
        self.spans = spans

    def send(self, batches: Any) -> Any:
        # Keeps the stream busy until all is queued, so that no host time counts as copying.
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(1_000_000)
        return self.spans.time(lambda: super(TimedRing, self).send(batches), self._stream)


def test_copies_run_beside_the_steps(device, table, figure) -> None:
    steps = cuda_clock.Spans()
    copies = cuda_clock.Spans(steps.origin)
    weight = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    wrong = []

    def step(batch: dict[str, torch.Tensor]) -> None:
        for _ in range(20):
            weight @ weight
        wrong.append((batch["value"] != 2 * batch["id"]).sum())

    directory, manifest = table
    with load(directory, manifest, batch_size=BATCH, device=device, num_epochs=2) as loader:
        loader._pipeline.memory = TimedRing(device, copies)
        for batch in loader:
            steps.time(lambda batch=batch: step(batch))
    assert torch.stack(wrong).sum().item() == 0
    copied, stepped = copies.read(), steps.read()
    both = cuda_clock.overlap(copied, stepped)
    assert both > 0
    share = 100 * both / cuda_clock.total(copied)
    beside = f"copies {cuda_clock.total(copied) * 1000:.1f} ms, steps {len(stepped)}"
    figure("time of copies that ran beside a step", share, "%", beside)


def test_rows_to_the_gpu(device, table, figure) -> None:
    directory, manifest = table
    seconds = {}
    for name, batches in _ways(directory, manifest, device).items():
        start = time.perf_counter()
        count = sum(len(batch["id"]) for batch in batches())
        torch.cuda.synchronize()
        seconds[name] = time.perf_counter() - start
        assert count == EPOCHS * (ROWS // BATCH) * BATCH
    size_bytes = EPOCHS * ROWS * WIDTH * 4
    in_memory = rate(size_bytes, seconds["host"])
    beside = f"in host memory: {in_memory:.2f} GB/s"
    for name, words in (("pinned", "pinned ring"), ("pageable", "pageable, copied by the step")):
        figure(
            f"loader's rows on the GPU, {words}", rate(size_bytes, seconds[name]), "GB/s", beside
        )


def test_what_a_step_waits_for(device, table, figure) -> None:
    directory, manifest = table
    weight = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)

    def seconds_a_step(batches: Callable[[], Iterator[Any]]) -> float:
        torch.cuda.synchronize()
        start, count = time.perf_counter(), 0
        for batch in batches():
            for _ in range(4):
                weight @ weight
            batch["vector"].sum()
            torch.cuda.synchronize()
            count += 1
        return (time.perf_counter() - start) / count

    still = {"vector": torch.zeros(BATCH, WIDTH, device=device)}
    seconds_a_step(lambda: iter([still] * 5))
    alone = seconds_a_step(lambda: iter([still] * 50))
    figure("step without a loader", 1000 * alone, "ms", "")
    ways = _ways(directory, manifest, device)
    for name, words in (("pinned", "pinned ring"), ("pageable", "pageable, copied by the step")):
        found = seconds_a_step(ways[name])
        figure(f"step with the loader, {words}", 1000 * found, "ms", f"without: {alone * 1000:.2f}")


def _ways(directory: Path, manifest: Any, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Three ways to go through the data: left in host memory, by the ring, copied afterwards."""

    def through(device: torch.device | None) -> Iterator[Any]:
        with load(
            directory, manifest, batch_size=BATCH, num_epochs=EPOCHS, device=device
        ) as loader:
            yield from loader

    return {
        "host": lambda: through(None),
        "pinned": lambda: through(device),
        "pageable": lambda: (
            {name: value.to(device) for name, value in batch.items()} for batch in through(None)
        ),
    }

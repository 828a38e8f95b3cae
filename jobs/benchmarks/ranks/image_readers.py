"""One measurement of images: reads JPEGs with one loader, and prints how long that took.

It is a process of its own, so that loaders share no memory, cache or thread. Its only argument says
as JSON what to read. All give the same batches, uint8 ``[batch, size, size, 3]`` and labels, in
random order; the first is empty, once a reader has imported what it needs.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


def _arrow(request: dict[str, Any]) -> Iterator[int]:
    import pyarrow.fs

    from sparkdl_runner.data.batches.loader import ArrowLoader
    from sparkdl_runner.data.dataset.manifest import Manifest

    yield 0
    directory = str(Path(request["directory"]) / "parquet")
    filesystem = pyarrow.fs.LocalFileSystem()
    with ArrowLoader(
        Manifest.read(filesystem, directory),
        filesystem,
        directory,
        batch_size=request["batch_size"],
        num_epochs=request["epochs"],
        workers_count=request["workers"],
        memory_budget_bytes=request["memory_budget_bytes"],
        images={"image": (request["size"],) * 2},
        tail="uneven",
    ) as loader:
        for batch in loader:
            yield len(batch["image"])


def _torch(request: dict[str, Any]) -> Iterator[int]:
    """One file for each image, as torchvision's ImageFolder has them."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    yield 0

    class Files(Dataset):
        def __init__(self) -> None:
            self.paths = sorted((Path(request["directory"]) / "files").glob("*.jpg"))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, row: int) -> tuple[Any, int]:
            return torch.from_numpy(_pillow(self.paths[row].read_bytes(), request["size"])), row

    loader = DataLoader(
        Files(), request["batch_size"], shuffle=True, num_workers=request["workers"]
    )
    for _ in range(request["epochs"]):
        for images, _ in loader:
            yield len(images)


def _mosaic(request: dict[str, Any]) -> Iterator[int]:
    import torch
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    yield 0

    class Samples(StreamingDataset):
        def __getitem__(self, row: int) -> tuple[Any, int]:
            sample = super().__getitem__(row)
            return torch.from_numpy(_pillow(sample["image"], request["size"])), sample["label"]

    dataset = Samples(
        local=str(Path(request["directory"]) / "mosaic"),
        batch_size=request["batch_size"],
        shuffle=True,
    )
    loader = DataLoader(dataset, request["batch_size"], num_workers=request["workers"])
    for _ in range(request["epochs"]):
        for images, _ in loader:
            yield len(images)


def _litdata(request: dict[str, Any]) -> Iterator[int]:
    import torch
    from litdata import StreamingDataLoader, StreamingDataset

    yield 0

    class Samples(StreamingDataset):
        def __getitem__(self, row: Any) -> tuple[Any, int]:
            sample = super().__getitem__(row)
            return torch.from_numpy(_pillow(sample["image"], request["size"])), sample["label"]

    dataset = Samples(str(Path(request["directory"]) / "litdata"), shuffle=True)
    loader = StreamingDataLoader(
        dataset, batch_size=request["batch_size"], num_workers=request["workers"]
    )
    for _ in range(request["epochs"]):
        for images, _ in loader:
            yield len(images)


def _pillow(encoded: bytes, size: int) -> Any:
    """A decoder written by hand."""
    from PIL import Image

    image = Image.open(io.BytesIO(encoded)).convert("RGB")
    return np.array(image.resize((size, size), Image.Resampling.BILINEAR))


_READERS: dict[str, Callable[[dict[str, Any]], Iterator[int]]] = {
    "arrow": _arrow,
    "torch": _torch,
    "mosaic": _mosaic,
    "litdata": _litdata,
}


def _processor_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def _peak_rss() -> int:
    """Bytes of this program alone, without its children."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _measure(request: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(1)
    base = _peak_rss()
    images = 0
    batches = _READERS[request["loader"]](request)
    next(batches)  # once it has imported what it needs
    began, used = time.perf_counter(), _processor_seconds()
    for count in batches:
        images += count
    answer = {
        "images": images,
        "seconds": time.perf_counter() - began,
        "processor_seconds": _processor_seconds() - used,
        "base_rss": base,
        "peak_rss": _peak_rss(),
    }
    print(json.dumps(answer), flush=True)
    os._exit(0)  # a reader may take long to stop its threads


if __name__ == "__main__":
    _measure(json.loads(sys.argv[1]))

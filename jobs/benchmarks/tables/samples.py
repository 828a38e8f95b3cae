"""Images and texts in the format of each loader, converted when they are first read."""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environment import peers_python
from benchmarks.ranks.stages import Answer, in_stages
from benchmarks.servers.object_store import ObjectStore
from benchmarks.suite.case import Case, Figure

IN_LANES = ("ours", "files")
CHUNK_BYTES = 8 << 20
"""Of a row group or chunk in all formats: theirs are of 32 to 64 MB, for larger data sets."""
EPOCHS = 2
READ, CONVERTED = ("first epoch", "second epoch", "of a core"), ("alone", "with start")
FROM_IMPORTS = "first epoch: from the imports to its end, opening included"


@dataclass(kw_only=True)
class Samples:
    """Samples of one kind.

    Attributes:
        folder: Of all formats.
        source: What others are made from: in it, a JPEG for each image, or Parquet files of texts.
        read_as_they_are: The loaders that read the source.
        rows: How many samples.
        size: Pixels of a side of an image in a batch; None for texts.
        batch_size: Of a rank's batch.
        workers: Threads or processes of each loader.
        store: Where they are read from, if not from the disk.
    """

    folder: Path
    source: Path
    read_as_they_are: tuple[str, ...]
    rows: int
    size: int | None
    batch_size: int
    workers: int
    store: ObjectStore | None = None
    urls: dict[str, str] = field(default_factory=dict)

    def read(self, loader: str) -> dict[str, float]:
        """Goes through two epochs in a new process, with an empty cache.

        Raises:
            RuntimeError: The loader failed, or an epoch lacked samples.
        """
        if loader not in self.urls:
            folder = self.source if loader in self.read_as_they_are else self.folder / loader
            if not folder.exists():
                self._convert(loader, folder)
            self.urls[loader] = self.store.upload(folder) if self.store else str(folder)
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            more = {"url": self.urls[loader], "cache": cache, "epochs": EPOCHS}
            _, opened, first, second = self._stages(loader, loader, {**more, **self._ours(cache)})
        for number, epoch in enumerate((first, second), 1):
            if epoch["samples"] != self.rows:
                raise RuntimeError(
                    f"epoch {number} had {epoch['samples']} samples in place of {self.rows}"
                )
        return {
            "first epoch": self.rows / (opened["seconds"] + first["seconds"]),
            "second epoch": self.rows / second["seconds"],
            "of a core": EPOCHS * self.rows / sum(one["cpu_seconds"] for one in (first, second)),
        }

    def convert(self, loader: str) -> dict[str, float]:
        """Makes a loader's format once more."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            start, conversion = self._convert(loader, Path(folder) / loader)
        alone, both = conversion["seconds"], start["seconds"] + conversion["seconds"]
        return {"alone": self.rows / alone, "with start": self.rows / both}

    def _ours(self, cache: str) -> dict[str, object]:
        """What this package's loader alone is told."""
        arguments: dict[str, object] = {
            "batch_size": self.batch_size,
            "workers_count": self.workers,
            "images": {"image": (self.size, self.size)} if self.size else None,
        }
        if self.store is None:
            return {"arguments": arguments}
        caching = {"cache_type": "local-disk", "cache_location": cache}
        options = self.store.options()
        return {"storage_options": options, "arguments": {**arguments, **caching}}

    def _convert(self, loader: str, folder: Path) -> list[Answer]:
        more = {"source": str(self.source), "into": str(folder), "chunk_bytes": CHUNK_BYTES}
        return self._stages(loader, f"to_{loader}", more)

    def _stages(self, loader: str, work: str, more: Mapping[str, object]) -> list[Answer]:
        own = {"work": work, "rows": self.rows, "size": self.size, "workers": self.workers}
        request = {**own, "batch_size": self.batch_size, **more}
        stages = in_stages(
            "ranks.sample_readers",
            [request],
            python=sys.executable if loader in IN_LANES else peers_python(),
            environment=self.store.environment() if self.store else {},
        )
        return [one for (one,) in stages]


def case(
    name: str,
    unit: str,
    figures: Sequence[str],
    measure: Callable[[str], Mapping[str, float]],
    loaders: Sequence[str],
    **more: Any,
) -> Case:
    """A case of this package's loader and others, where more of each figure is better."""
    sides = {loader: partial(measure, loader) for loader in loaders}
    return Case(
        name=name,
        figures={figure: Figure(unit=unit, better="more") for figure in figures},
        ours={loader: sides[loader] for loader in loaders if loader == "ours"},
        peers={loader: sides[loader] for loader in loaders if loader != "ours"},
        **more,
    )


def jpegs(width: int, height: int, count: int) -> list[bytes]:
    """Soft shapes with grain, which compress about as photographs do; one in eight is new."""
    from PIL import Image

    random = np.random.default_rng(0)
    pictures = []
    for _ in range(-(-count // 8)):
        shapes = random.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
        soft = Image.fromarray(shapes).resize((width, height), Image.Resampling.BICUBIC)
        grain = random.normal(0, 5, (height, width, 1)).astype(np.int16)
        pixels = (np.asarray(soft) + grain).clip(0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format="JPEG", quality=75)
        pictures.append(stream.getvalue())
    return (pictures * 8)[:count]

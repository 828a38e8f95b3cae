"""Images and texts in the formats of several loaders: reading from disk and from S3, converting.

JPEGs are rows of Parquet for this package, files for torch's DataLoader, and shards of their own
for LitData and mosaicml-streaming. Texts, as long as TinyStories', are rows of Parquet for this
package, Hugging Face datasets (a stream) and torchdata (over Arrow files, made while it opens), and
shards for the two. Each measurement is a new process that goes through two epochs. S3 is a server
on this host that answers late; the first epoch fills a loader's cache. These are the tables that
LitData publishes, at a scale that fits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environment import peers_python
from benchmarks.ranks.stages import Answer, in_stages
from benchmarks.servers.object_store import ObjectStore, object_store
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from benchmarks.tables.jpegs import jpegs

HELP = "images and texts, beside LitData, mosaicml-streaming, Hugging Face, torchdata and torch"
OURS, FILES, LITDATA, MOSAIC = "ours", "files", "litdata", "mosaic"
HUGGING_FACE, TORCHDATA = "hugging_face", "torchdata"
LOADERS = (OURS, FILES, LITDATA, MOSAIC, HUGGING_FACE, TORCHDATA)
CASES = ("disk", "s3", "conversion", "text")
READ, CONVERTED = ("first epoch", "second epoch", "of a core"), ("alone", "with start")
_CHUNK_BYTES = 8 << 20
"""Of row groups and chunks: by default they are of 32 to 64 MB, for larger data sets."""
_FOLDERS = ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER", "HF_HOME")
"""Variables for what LitData and Hugging Face would leave elsewhere."""
_FILES_OF_TEXT, _WORDS, _WORDS_OF_A_STORY = 4, 3000, (60, 320)


def _size(text: str) -> tuple[int, int]:
    width, height = map(int, text.split("x"))
    return width, height


OPTIONS = (
    Option("cases", list(CASES), choices=CASES),
    Option("loaders", list(LOADERS), quick=[OURS, FILES, HUGGING_FACE], choices=LOADERS),
    Option("sizes", [(500, 375), (2000, 1500)], quick=[(500, 375)], type=_size),
    Option("images", 1000, quick=60, help="of the first size"),
    Option("texts", 60_000, quick=5000),
    Option("size", 224, help="pixels of a side in a batch"),
    Option("batch-size", 32, help="of texts 32 times"),
    Option("workers", 2),
    Option("delay-seconds", 0.02, help="of each request to S3"),
    Option("turns", 2, quick=1),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Images of each size from the disk; those of the first from S3, and converted; texts."""
    for kind in arguments.cases:
        for size in arguments.sizes if kind == "disk" else arguments.sizes[:1]:
            with (
                tempfile.TemporaryDirectory(prefix="benchmark-formats-") as folder,
                object_store(arguments.delay_seconds) if kind == "s3" else nullcontext() as store,
            ):
                yield _Samples(arguments, kind, size, Path(folder), store).case()


@dataclass
class _Samples:
    """Images or texts in a folder, and in the format of each loader once it has been read."""

    arguments: argparse.Namespace
    kind: str
    size: tuple[int, int]
    folder: Path
    store: ObjectStore | None
    urls: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_text = self.kind == "text"
        self.source = self.folder / FILES
        first, pixels = self.arguments.sizes[0], self.size[0] * self.size[1]
        # A conversion of few would show what starting it costs.
        images = self.arguments.images * (4 if self.kind == "conversion" else 1)
        images = images * first[0] * first[1] // pixels
        self.rows = self.arguments.texts if self.is_text else max(8, images)
        # Of texts 32 times as many.
        self.batch_size = self.arguments.batch_size * (32 if self.is_text else 1)

    def case(self) -> Case:
        """Writes the samples, which its sides then read or convert."""
        self.source.mkdir()
        if self.is_text:
            _write_stories(self.source, self.rows)
        else:
            for number, jpeg in enumerate(jpegs(*self.size, self.rows)):
                (self.source / f"{number:06}.jpg").write_bytes(jpeg)
        is_conversion = self.kind == "conversion"
        left_out = {"conversion": (FILES, HUGGING_FACE, TORCHDATA), "text": (FILES,)}
        others = left_out.get(self.kind, (HUGGING_FACE, TORCHDATA))
        measure = self.convert if is_conversion else self.read
        sides = {one: partial(measure, one) for one in self.arguments.loaders if one not in others}
        unit, what = (
            ("rows/s", "texts") if self.is_text else ("images/s", "{}x{}".format(*self.size))
        )
        time = "after the imports; with the start and end of workers, the first epoch with opening"
        if is_conversion:
            time = "with start: imports, of ours also the start of Spark"
        return Case(
            name=f"{self.rows} {what}, {self.kind}",
            figures={
                name: Figure(unit=unit, better="more")
                for name in (CONVERTED if is_conversion else READ)
            },
            ours={one: sides[one] for one in sides if one == OURS},
            peers={one: sides[one] for one in sides if one != OURS},
            turns=self.arguments.turns,
            # The server behind the front is asked in the warm-up alone.
            warm_ups=int(self.kind == "s3"),
            facts={
                "ranks": 1,
                "batch of a rank": self.batch_size,
                "row group, chunk": f"{_CHUNK_BYTES >> 20} MiB",
                "large JPEGs": "ours decodes them at a half or less, if they are to be smaller yet",
                "time": time,
            },
        )

    def read(self, loader: str) -> dict[str, float]:
        """Goes through two epochs in a new process, with an empty cache.

        Raises:
            RuntimeError: The loader failed, or an epoch lacked samples.
        """
        if loader not in self.urls:
            is_source = loader not in (LITDATA, MOSAIC, *([] if self.is_text else [OURS]))
            folder = self.source if is_source else self.folder / loader
            if not folder.exists():
                self._convert(loader, folder)
            self.urls[loader] = self.store.upload(folder) if self.store else str(folder)
        with tempfile.TemporaryDirectory() as cache:
            more: dict[str, Any] = {"url": self.urls[loader], "cache": cache, "epochs": 2}
            if loader == OURS:
                more |= self._ours(cache)
            _, opened, *epochs = self._stages(loader, loader, more)
        if [one["samples"] for one in epochs] != 2 * [self.rows]:
            raise RuntimeError(f"epochs of {[one['samples'] for one in epochs]} samples")
        first, second = opened["seconds"] + epochs[0]["seconds"], epochs[1]["seconds"]
        of_a_core = sum(one["cpu_seconds"] for one in epochs) / 2
        times = (first, second, of_a_core)
        return {name: self.rows / one for name, one in zip(READ, times, strict=True)}

    def convert(self, loader: str) -> dict[str, float]:
        """Makes a loader's format once."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            start, conversion = self._convert(loader, Path(folder) / loader)
        alone, both = conversion["seconds"], start["seconds"] + conversion["seconds"]
        times = (alone, both)
        return {name: self.rows / one for name, one in zip(CONVERTED, times, strict=True)}

    def _convert(self, loader: str, folder: Path) -> list[Answer]:
        more = {"source": str(self.source), "into": str(folder), "chunk_bytes": _CHUNK_BYTES}
        return self._stages(loader, f"to_{loader}", more)

    def _ours(self, cache: str) -> dict[str, Any]:
        reading = {"batch_size": self.batch_size, "workers_count": self.arguments.workers}
        if not self.is_text:
            reading["images"] = {"image": (self.arguments.size,) * 2}
        if self.store is None:
            return {"arguments": reading}
        reading |= {"cache_type": "local-disk", "cache_location": cache}
        return {"arguments": reading, "storage_options": self.store.options()}

    def _stages(self, loader: str, work: str, more: Mapping[str, Any]) -> list[Answer]:
        size = None if self.is_text else self.arguments.size
        request = {"work": work, "rows": self.rows, "size": size, **more}
        request |= {"batch_size": self.batch_size, "workers": self.arguments.workers}
        folders = {name: str(self.folder / name) for name in _FOLDERS}
        stages = in_stages(
            [request],
            python=sys.executable if loader in (OURS, FILES) else peers_python(),
            environment=folders | (self.store.environment() if self.store else {}),
        )
        return [one for (one,) in stages]


def _write_stories(folder: Path, rows: int) -> None:
    """Parquet files of as many rows each, or one more."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    letters = random.integers(97, 123, (_WORDS, 9), dtype=np.uint8)
    words = np.array([bytes(one[: 2 + at % 7]).decode() for at, one in enumerate(letters)])
    lengths = random.integers(*_WORDS_OF_A_STORY, rows)
    texts = [" ".join(words[random.integers(0, _WORDS, length)]) for length in lengths]
    group_rows = max(1, _CHUNK_BYTES * rows // sum(map(len, texts)))
    for number in range(_FILES_OF_TEXT):
        table = pa.table({"text": texts[number::_FILES_OF_TEXT]})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group_rows)

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
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.environment import peers_python
from benchmarks.ranks.stages import Answer, in_stages
from benchmarks.servers.object_store import ObjectStore, object_store
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from benchmarks.tables.jpegs import jpegs

HELP = "images and texts, beside LitData, mosaicml-streaming, Hugging Face, torchdata and torch"
OURS, FILES, LITDATA, MOSAIC = "ours", "files", "litdata", "mosaic"
HUGGING_FACE, TORCHDATA = "hugging_face", "torchdata"
LOADERS = {
    "conversion": (OURS, LITDATA, MOSAIC),
    "disk": (OURS, FILES, LITDATA, MOSAIC),
    "s3": (OURS, LITDATA, MOSAIC),
    "text": (OURS, LITDATA, MOSAIC, HUGGING_FACE, TORCHDATA),
}
"""By case those that are measured. A conversion comes first: the cases after it read it."""
JOINED = "conversion and first epoch"
CONVERTED, READ = ("alone", "with start"), ("first epoch", "second epoch", "of a core", JOINED)
_TOLD = {
    "with start": "imports, of ours also the start of Spark",
    "first epoch": "without imports, with opening; both with the start and end of workers",
    JOINED: "without imports and the start of Spark; if nothing is converted, the epoch alone",
    HUGGING_FACE: "sleeps 5 s at the end of each shuffled epoch of a stream of Parquet",
}
"""Notes on figures and sides, by their name, for the facts of a case."""
JPEG, SIZE = (500, 375), 224
"""Pixels: width and height in a file, and of a side in a batch."""
WORKERS, DELAY_SECONDS = 2, 0.02
"""Of a loader; of each request to S3."""
_CHUNK_BYTES = 8 << 20
"""Of row groups and chunks: by default they are of 32 to 64 MB, for larger data sets."""
_FOLDERS = ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER", "HF_HOME")
"""Variables for what LitData and Hugging Face would leave elsewhere."""

_ALL = (OURS, FILES, LITDATA, MOSAIC, HUGGING_FACE, TORCHDATA)
OPTIONS = (
    Option("cases", list(LOADERS), choices=list(LOADERS)),
    Option("loaders", list(_ALL), quick=[OURS, FILES, HUGGING_FACE], choices=_ALL),
    Option("images", 1500, quick=60),
    Option("texts", 100_000, quick=2000),
    Option("turns", 2, quick=1),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Images converted, from the disk and from S3, and texts from the disk."""
    seconds: dict[Path, float] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-formats-") as folder:
        for kind in arguments.cases:
            rows = arguments.texts if kind == "text" else arguments.images
            with object_store(DELAY_SECONDS) if kind == "s3" else nullcontext() as store:
                samples = _Samples(kind, rows, Path(folder), store, seconds)
                samples.write()
                loaders = [one for one in arguments.loaders if one in LOADERS[kind]]
                yield _case(samples, loaders, arguments.turns)


def _case(samples: _Samples, loaders: list[str], turns: int) -> Case:
    measure = samples.convert if samples.kind == "conversion" else samples.read
    # Putting a format there is not measured.
    figures = {"conversion": CONVERTED, "s3": READ[:-1]}.get(samples.kind, READ)
    unit, what = ("rows/s", "texts") if samples.is_text else ("images/s", "{}x{}".format(*JPEG))
    return Case(
        name=f"{samples.rows} {what}, {samples.kind}",
        figures={figure: Figure(unit=unit, better="more") for figure in figures},
        ours={one: partial(measure, one) for one in loaders if one == OURS},
        peers={one: partial(measure, one) for one in loaders if one != OURS},
        turns=turns,
        # moto itself is asked in the warm-up alone. A single turn is but a try.
        warm_ups=int(samples.store is not None and turns > 1),
        facts={
            "ranks": 1,
            "batch of a rank": samples.batch_size,
            "row group, chunk": f"{_CHUNK_BYTES >> 20} MiB",
            **{name: told for name, told in _TOLD.items() if name in (*figures, *loaders)},
        },
    )


@dataclass
class _Samples:
    """Images or texts in a folder, and in the format of each loader once it has converted them."""

    kind: str
    rows: int
    folder: Path
    store: ObjectStore | None
    seconds: dict[Path, float]
    """Of the last conversion into each folder, by all cases."""
    urls: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_text = self.kind == "text"
        self.batch_size = 1024 if self.is_text else 32
        self.folder /= "texts" if self.is_text else "images"
        # Texts are there as what ours converts to.
        self.source = self.folder / (OURS if self.is_text else FILES)

    def write(self) -> None:
        """Writes the samples, which the sides then read or convert, unless they are there."""
        if self.source.exists():
            return
        self.source.mkdir(parents=True)
        if self.is_text:
            _write_stories(self.source, self.rows)
            return
        for number, jpeg in enumerate(jpegs(*JPEG, self.rows)):
            (self.source / f"{number:06}.jpg").write_bytes(jpeg)

    def read(self, loader: str) -> dict[str, float]:
        """Goes through two epochs in a new process, with an empty cache.

        Raises:
            RuntimeError: The loader failed, or an epoch lacked samples.
        """
        folder = self.folder / loader if loader in LOADERS["conversion"] else self.source
        if not folder.exists():
            self.convert(loader)
        if loader not in self.urls:
            self.urls[loader] = self.store.upload(folder) if self.store else str(folder)
        with tempfile.TemporaryDirectory() as cache:
            ours: dict[str, Any] = {"batch_size": self.batch_size, "workers_count": WORKERS}
            more = {"url": self.urls[loader], "cache": cache, "epochs": 2, "arguments": ours}
            if not self.is_text:
                ours["images"] = {"image": (SIZE, SIZE)}
            if self.store:
                ours |= {"cache_type": "local-disk", "cache_location": cache}
                more["storage_options"] = self.store.options()
            _, opened, *epochs = self._stages(loader, loader, more)
        if [one["samples"] for one in epochs] != 2 * [self.rows]:
            raise RuntimeError(f"epochs of {[one['samples'] for one in epochs]} samples")
        of_a_core = sum(one["cpu_seconds"] for one in epochs) / 2
        first = opened["seconds"] + epochs[0]["seconds"]
        joined = self.seconds.get(folder, 0.0) + first
        return self._speeds(READ, first, epochs[1]["seconds"], of_a_core, joined)

    def convert(self, loader: str) -> dict[str, float]:
        """Makes a loader's format anew."""
        into = self.folder / loader
        shutil.rmtree(into, ignore_errors=True)
        more = {"source": str(self.source), "into": str(into), "chunk_bytes": _CHUNK_BYTES}
        start, alone = self._stages(loader, f"to_{loader}", more)
        self.seconds[into] = alone["seconds"]
        return self._speeds(CONVERTED, alone["seconds"], start["seconds"] + alone["seconds"])

    def _speeds(self, names: Sequence[str], *seconds: float) -> dict[str, float]:
        return {name: self.rows / one for name, one in zip(names, seconds, strict=True)}

    def _stages(self, loader: str, work: str, more: Mapping[str, Any]) -> list[Answer]:
        request = {"work": work, "rows": self.rows, "size": None if self.is_text else SIZE}
        request |= {"batch_size": self.batch_size, "workers": WORKERS, **more}
        folders = {name: str(self.folder / name) for name in _FOLDERS}
        stages = in_stages(
            [request],
            python=sys.executable if loader in (OURS, FILES) else peers_python(),
            environment=folders | (self.store.environment() if self.store else {}),
        )
        return [one for (one,) in stages]


def _write_stories(folder: Path, rows: int) -> None:
    """Four Parquet files of as many rows each, or one more."""
    random = np.random.default_rng(0)
    letters = random.integers(97, 123, (3000, 9), dtype=np.uint8)
    words = np.array([bytes(one[: 2 + at % 7]).decode() for at, one in enumerate(letters)])
    lengths = random.integers(60, 320, rows)
    texts = [" ".join(random.choice(words, length)) for length in lengths]
    group_rows = max(1, _CHUNK_BYTES * rows // sum(map(len, texts)))
    for number in range(4):
        table = pa.table({"text": texts[number::4]})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group_rows)

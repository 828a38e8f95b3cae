"""Short stories from the disk, beside other formats and their loaders.

They are as long as those of TinyStories. Rows of Parquet files are what this package, Hugging Face
datasets (a stream) and torchdata (over Arrow files, which are made while it opens) read; LitData
and mosaicml-streaming have made their own shards of them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.suite.case import Case
from benchmarks.suite.options import positive
from benchmarks.tables.samples import CHUNK_BYTES, FROM_IMPORTS, READ, Samples, case

HELP = "texts, beside Hugging Face datasets, torchdata, LitData and mosaicml-streaming"
LOADERS = ("ours", "hugging_face", "torchdata", "litdata", "mosaic")
QUICK = ["--rows", "10000", "--turns", "1", "--loaders", "ours", "hugging_face"]
_FILES = 4
_WORDS = 3000
_WORDS_OF_A_STORY = (60, 320)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--rows", type=positive, default=100_000)
    parser.add_argument("--loaders", nargs="+", default=list(LOADERS), choices=LOADERS)
    parser.add_argument("--batch-size", type=positive, default=1024)
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--turns", type=positive, default=3)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """One table of texts."""
    with tempfile.TemporaryDirectory(prefix="benchmark-text-") as temporary:
        samples = Samples(
            folder=Path(temporary),
            source=Path(temporary) / "parquet",
            read_as_they_are=("ours", "hugging_face", "torchdata"),
            rows=arguments.rows,
            size=None,
            batch_size=arguments.batch_size,
            workers=arguments.workers,
        )
        _write_stories(samples.source, arguments.rows)
        facts = {"ranks": 1, "batch of a rank": arguments.batch_size, "workers": arguments.workers}
        facts |= {"row group, chunk": f"{CHUNK_BYTES >> 20} MiB", "time": FROM_IMPORTS}
        name, loaders = f"{arguments.rows} stories", arguments.loaders
        more = {"turns": arguments.turns, "facts": facts}
        yield case(name, "rows/s", READ, samples.read, loaders, **more)


def _write_stories(folder: Path, rows: int) -> None:
    """Files of as many rows each, and one or so more."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    random = np.random.default_rng(0)
    letters = random.integers(97, 123, (_WORDS, 9), dtype=np.uint8)
    words = np.array([bytes(one[: 2 + at % 7]).decode() for at, one in enumerate(letters)])
    for number in range(_FILES):
        count = rows * (number + 1) // _FILES - rows * number // _FILES
        texts = [
            " ".join(words[random.integers(0, _WORDS, length)])
            for length in random.integers(*_WORDS_OF_A_STORY, count)
        ]
        mean = max(1, sum(map(len, texts)) // max(1, count))
        table = pa.table({"text": texts})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=CHUNK_BYTES // mean)

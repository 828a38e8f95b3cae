"""Images from the disk and from S3, and their conversion, beside other formats and their loaders.

The same JPEGs are rows of Parquet for this package, files for torch's DataLoader, and shards in
their own formats for mosaicml-streaming and LitData. Each measurement is a new process, which goes
through two epochs; from S3, a server on this host that answers late, the first fills its cache.
These are the tables that LitData publishes, at a scale that fits.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.servers.object_store import object_store
from benchmarks.suite.case import Case
from benchmarks.suite.options import positive
from benchmarks.tables.samples import (
    CHUNK_BYTES,
    CONVERTED,
    FROM_IMPORTS,
    READ,
    Samples,
    case,
    jpegs,
)

HELP = "images from disk and S3, beside torch's DataLoader, mosaicml-streaming and LitData"
LOADERS = ("ours", "files", "mosaic", "litdata")
QUICK = ["--turns", "1", "--sizes", "500x375", "--megapixels", "10", "--s3-images", "60"]
QUICK += ["--loaders", "ours", "files"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--sizes", nargs="+", default=["500x375", "2000x1500"])
    parser.add_argument("--loaders", nargs="+", default=list(LOADERS), choices=LOADERS)
    parser.add_argument(
        "--megapixels", type=positive, default=200, help="of all images of a size together"
    )
    parser.add_argument("--s3-images", type=positive, default=600, help="of the first size")
    parser.add_argument("--delay-seconds", type=float, default=0.02, help="of each request to S3")
    parser.add_argument("--size", type=positive, default=224, help="pixels of a side in a batch")
    parser.add_argument("--batch-size", type=positive, default=32)
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--turns", type=positive, default=3)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Images of each size from the disk; those of the first size also from S3, and converted."""
    loaders = arguments.loaders
    facts = {"ranks": 1, "batch of a rank": arguments.batch_size, "workers": arguments.workers}
    facts |= {"row group, chunk": f"{CHUNK_BYTES >> 20} MiB", "time": FROM_IMPORTS}
    more = {"turns": arguments.turns, "facts": facts}
    for size in arguments.sizes:
        width, height = map(int, size.split("x"))
        count = max(8, arguments.megapixels * 1_000_000 // (width * height))
        with _samples(arguments, width, height, count) as samples:
            yield case(f"{count} of {size}, disk", "images/s", READ, samples.read, loaders, **more)
    size = arguments.sizes[0]
    width, height = map(int, size.split("x"))
    with (
        _samples(arguments, width, height, arguments.s3_images) as samples,
        object_store(arguments.delay_seconds) as samples.store,
    ):
        name = f"{samples.rows} of {size}"
        facts["seconds of a request"] = arguments.delay_seconds
        # The server behind the front is asked in the warm-up alone.
        yield case(f"{name}, S3", "images/s", READ, samples.read, loaders, **more, warm_ups=1)
        more["facts"] = {**facts, "time": "with start: imports, of ours also Spark's session"}
        converted = [one for one in loaders if one != "files"]
        yield case(f"{name}, conversion", "images/s", CONVERTED, samples.convert, converted, **more)


@contextmanager
def _samples(
    arguments: argparse.Namespace, width: int, height: int, count: int
) -> Iterator[Samples]:
    """JPEGs, and a folder for the other formats, as long as it lasts."""
    with tempfile.TemporaryDirectory(prefix="benchmark-images-") as temporary:
        files = Path(temporary) / "files"
        files.mkdir()
        for number, jpeg in enumerate(jpegs(width, height, count)):
            (files / f"{number:06}.jpg").write_bytes(jpeg)
        yield Samples(
            folder=Path(temporary),
            source=files,
            read_as_they_are=("files",),
            rows=count,
            size=arguments.size,
            batch_size=arguments.batch_size,
            workers=arguments.workers,
        )

"""Loaders of JPEGs beside each other: images/s by the clock and by the processor.

The same JPEGs are rows of Parquet for this package, files for torch's DataLoader, and shards in
their own formats for mosaicml-streaming and LitData, where those are installed. Every measurement
is a fresh process; loaders take turns, and medians of ratios within a turn are reported.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import aligned, in_turns, positive, ratio, result_rows
from benchmarks.ranks.processes import answer_of

HELP = "images, beside torch's DataLoader, mosaicml-streaming and LitData"
LOADERS = ("arrow", "torch", "mosaic", "litdata")
_GROUP_BYTES = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--sizes", nargs="+", default=["500x375", "2000x1500"])
    parser.add_argument("--loaders", nargs="+", default=list(LOADERS), choices=LOADERS)
    parser.add_argument(
        "--megapixels", type=positive, default=400, help="of all images of a size together"
    )
    parser.add_argument("--size", type=positive, default=224, help="pixels of a side in a batch")
    parser.add_argument("--batch-size", type=positive, default=32)
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--epochs", type=positive, default=1)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--memory-budget-bytes", type=positive, default=None)
    parser.add_argument("--data", default=None, help="directory for the files; kept if given")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Reads images of each size with each loader."""
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        for size in arguments.sizes:
            width, height = map(int, size.split("x"))
            count = max(8, arguments.megapixels * 1_000_000 // (width * height))
            folder = Path(arguments.data or temporary) / f"{size}-{count}"
            _write(folder, width, height, count)
            reads = {}
            for loader in arguments.loaders:
                request = {
                    "directory": str(folder),
                    "loader": loader,
                    "batch_size": arguments.batch_size,
                    "epochs": arguments.epochs,
                    "workers": arguments.workers,
                    "size": arguments.size,
                    "memory_budget_bytes": arguments.memory_budget_bytes,
                }
                reads[loader] = partial(_read, request)
            print(f"{size}:", flush=True)
            results += _results(size, in_turns(reads, arguments.rounds, warm_up=True))
    return {"results": results}


def _results(size: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    results = []
    for loader, rounds in found.items():
        entry: dict[str, Any] = {"size": size, "loader": loader}
        results.append(entry)
        if isinstance(rounds, str):
            entry["skipped"] = rounds
            continue
        for key in rounds[0]:
            entry[key] = statistics.median(one[key] for one in rounds)
        ours = found.get("arrow")
        if loader != "arrow" and isinstance(ours, list):
            for key in ("images_per_second", "images_per_processor_second"):
                entry[f"{key}_arrow"] = round(
                    ratio([one[key] for one in ours], [one[key] for one in rounds]), 2
                )
    return results


def table(report: Mapping[str, Any]) -> str:
    """All loaders, with how many times faster this package's is than each."""
    rows: list[tuple[str, ...]] = [
        ("", "images/s", "of a processor", "peak MB", "arrow is times as fast", "of a processor")
    ]
    return aligned(rows + result_rows(report["results"], "{size}: {loader}", _cells))


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    times = (
        one.get(f"{key}_arrow") for key in ("images_per_second", "images_per_processor_second")
    )
    return (
        f"{one['images_per_second']:,.0f}",
        f"{one['images_per_processor_second']:,.0f}",
        f"{one['peak_rss'] / 1e6:,.0f}",
        *("-" if value is None else f"{value:.2f}" for value in times),
    )


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether this package's loader gave its figures."""
    return not any("skipped" in one for one in report["results"] if one["loader"] == "arrow")


def _read(request: dict[str, Any]) -> dict[str, float]:
    answer = answer_of("ranks.image_readers", request)
    return {
        "images_per_second": answer["images"] / answer["seconds"],
        "images_per_processor_second": answer["images"] / answer["processor_seconds"],
        "base_rss": answer["base_rss"],
        "peak_rss": answer["peak_rss"],
    }


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


def _write(folder: Path, width: int, height: int, count: int) -> None:
    """Writes the same JPEGs for each loader, unless they are there."""
    import pyarrow as pa
    import pyarrow.fs
    import pyarrow.parquet as pq

    from sparkdl_runner.data.dataset.describe import describe_parquet

    if folder.exists():
        return
    encoded = jpegs(width, height, count)
    parquet, files = folder / "parquet", folder / "files"
    for one in (parquet, files):
        one.mkdir(parents=True)
    pq.write_table(
        pa.table({"image": encoded, "label": np.arange(count)}),
        parquet / "part-00000.parquet",
        compression="none",
        use_dictionary=False,
        row_group_size=max(1, _GROUP_BYTES * count // sum(map(len, encoded))),
    )
    filesystem = pyarrow.fs.LocalFileSystem()
    describe_parquet(filesystem, str(parquet), ["part-00000.parquet"]).write(
        filesystem, str(parquet)
    )
    for number, jpeg in enumerate(encoded):
        (files / f"{number:06}.jpg").write_bytes(jpeg)
    try:
        from streaming import MDSWriter

        with MDSWriter(
            out=str(folder / "mosaic"), columns={"image": "bytes", "label": "int"}
        ) as out:
            for number, jpeg in enumerate(encoded):
                out.write({"image": jpeg, "label": number})
    except ImportError as error:
        print(error)
    try:
        from litdata.streaming.writer import BinaryWriter

        lit = folder / "litdata"
        lit.mkdir()
        writer = BinaryWriter(str(lit), chunk_bytes="64MB")
        for number, jpeg in enumerate(encoded):
            writer[number] = {"image": jpeg, "label": number}
        writer.done()
        writer.merge()
    except ImportError as error:
        print(error)

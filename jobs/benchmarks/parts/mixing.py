"""How well batches mix a table that is sorted by its label, beside petastorm and a permutation.

Counts the labels of the batches that loaders give. All ranks' loaders are in this process and take
turns, as the ranks of a training do. The table is written without Spark, except for
``shuffle_seed``, where Spark writes it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import aligned, positive, reason_of, result_rows

HELP = "how well batches of a sorted table mix, beside petastorm"
LABELS = 10
DEFAULT = "as written by default"
SHUFFLED = "shuffle_seed"
_MOST_DEVIATION = 1.2
_NEEDED = {
    DEFAULT: (math.inf, 0.0),
    "1,000 row groups": (_MOST_DEVIATION, 0.9),
    SHUFFLED: (1 / 0.98, 0.98),
}
"""For each table the bounds: deviation and share of labels, relative to a permutation."""

_Batches = Iterator[list[Any]]
"""For each step the labels ``[batch]`` of each rank."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--rows", type=positive, default=1_000_000)
    parser.add_argument("--ranks", type=positive, default=8)
    parser.add_argument("--batch-size", type=positive, default=64)
    parser.add_argument("--row-groups", nargs="*", type=positive, default=[64, 1000])
    parser.add_argument("--without-spark", action="store_true", help="leave shuffle_seed out")
    parser.add_argument("--without-petastorm", action="store_true")
    parser.add_argument("--shuffling-queue-capacity", type=positive, default=50_000)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Reads one epoch of each table with each loader."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        tables: dict[str, Callable[[Path], None]] = {
            DEFAULT: partial(_write_default, arguments.rows)
        }
        for groups in arguments.row_groups:
            tables[f"{groups:,} row groups"] = partial(_write, arguments.rows, groups)
        if not arguments.without_spark:
            tables[SHUFFLED] = partial(_write_by_spark, arguments.rows)
        for name, write in tables.items():
            folder = Path(temporary) / f"table-{len(results)}"
            print(f"{name}:", flush=True)
            write(folder)
            loaders: dict[str, Callable[..., _Batches]] = {"arrow": _arrow}
            if not arguments.without_petastorm:
                loaders["petastorm"] = _petastorm
            loaders["permutation"] = _permutation
            for loader, read in loaders.items():
                entry: dict[str, Any] = {"table": name, "loader": loader}
                try:
                    entry |= _figures(read(folder, arguments))
                except Exception as error:
                    entry["skipped"] = reason_of(error)
                results.append(entry)
    return {"results": results}


def table(report: Mapping[str, Any]) -> str:
    """All tables and loaders, and how near each is to a permutation in the same run."""
    rows: list[tuple[str, ...]] = [
        ("", "deviation", "times a permutation's", "labels", "of a permutation's", "batches")
    ]

    def cells(one: Mapping[str, Any]) -> tuple[str, ...]:
        deviation, labels = _beside_permutation(report, one)
        return (
            f"{one['deviation']:.4f}",
            f"{deviation:.2f}",
            f"{one['labels']:.2f}",
            f"{labels:.3f}",
            f"{one['steps']:,}",
        )

    return aligned(rows + result_rows(report["results"], "{table}: {loader}", cells))


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether this package's batches mix as well as they should, from 64 row groups on."""
    for one in report["results"]:
        if one["loader"] != "arrow":
            continue
        if "skipped" in one:
            return False
        deviation, labels = _beside_permutation(report, one)
        most, least = _NEEDED.get(one["table"], (_MOST_DEVIATION, 0.0))
        if deviation > most or labels < least:
            return False
    return True


def _beside_permutation(report: Mapping[str, Any], one: Mapping[str, Any]) -> tuple[float, float]:
    (true,) = [
        other
        for other in report["results"]
        if other["table"] == one["table"] and other["loader"] == "permutation"
    ]
    return one["deviation"] / true["deviation"], one["labels"] / true["labels"]


def _figures(batches: _Batches) -> dict[str, float]:
    """Means over the steps and ranks of an epoch, of whole batches alone."""
    deviations, labels = [], []
    for step in batches:
        counts = np.array([np.bincount(one, minlength=LABELS) for one in step])
        labels.append(float((counts > 0).sum(axis=1).mean()))
        shares = counts.sum(axis=0) / counts.sum()
        deviations.append(float(np.abs(shares - 1 / LABELS).sum() / 2))
    return {
        "deviation": float(np.mean(deviations)),
        "labels": float(np.mean(labels)),
        "steps": len(labels),
    }


def _labels(rows: int) -> Any:
    return np.arange(rows) * LABELS // rows


def _table(rows: int) -> Any:
    import pyarrow as pa

    values = np.random.default_rng(0).random((rows, 8), dtype=np.float32)
    columns = {f"c{number}": values[:, number] for number in range(8)}
    return pa.table({"label": _labels(rows), **columns})


def _write(rows: int, groups: int, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sparkdl_runner.data.dataset.describe import describe_parquet

    folder.mkdir()
    files = min(8, groups)
    whole, names = _table(rows), []
    for number in range(files):
        begin, end = rows * number // files, rows * (number + 1) // files
        names.append(f"part-{number:05}.parquet")
        group_rows = -(-(end - begin) * files // groups)
        pq.write_table(whole.slice(begin, end - begin), folder / names[-1], group_rows)
    local = pa.fs.LocalFileSystem()
    describe_parquet(local, str(folder), names).write(local, str(folder))


def _write_default(rows: int, folder: Path) -> None:
    """As Spark writes the table sorted: a file for each core, of one row group each."""
    _write(rows, len(os.sched_getaffinity(0)), folder)


def _write_by_spark(rows: int, folder: Path) -> None:
    from pyspark.sql import SparkSession

    from sparkdl_runner.data import make_spark_converter

    source = folder.with_name("source")
    _write_default(rows, source)
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "1g")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    try:
        frame = spark.read.parquet(*map(str, sorted(source.glob("*.parquet"))))
        cache = f"file://{folder.with_name('cache')}"
        spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", cache)
        converter = make_spark_converter(frame, shuffle_seed=7)
        Path(converter.cache_dir_url.removeprefix("file://")).rename(folder)
    finally:
        spark.stop()


def _arrow(folder: Path, arguments: argparse.Namespace) -> _Batches:
    import pyarrow as pa

    from sparkdl_runner.data.batches.loader import ArrowLoader
    from sparkdl_runner.data.dataset.manifest import Manifest

    local = pa.fs.LocalFileSystem()
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The loader warns of sorted tables.
        loaders = [
            stack.enter_context(
                ArrowLoader(
                    Manifest.read(local, str(folder)),
                    local,
                    str(folder),
                    batch_size=arguments.batch_size,
                    cur_shard=rank,
                    shard_count=arguments.ranks,
                    workers_count=1,
                    columns=["label"],
                    device="numpy",
                )
            )
            for rank in range(arguments.ranks)
        ]
        for batches in zip(*loaders, strict=True):
            yield [batch["label"] for batch in batches]


def _petastorm(folder: Path, arguments: argparse.Namespace) -> _Batches:
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    urls = [f"file://{path}" for path in sorted(folder.glob("*.parquet"))]
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaders = [
            stack.enter_context(
                BatchedDataLoader(
                    make_batch_reader(
                        urls,
                        schema_fields=["label"],
                        cur_shard=rank,
                        shard_count=arguments.ranks,
                        workers_count=1,
                    ),
                    batch_size=arguments.batch_size,
                    shuffling_queue_capacity=arguments.shuffling_queue_capacity,
                )
            )
            for rank in range(arguments.ranks)
        ]
        for batches in zip(*loaders, strict=False):  # Its shards are not equally long.
            found = [batch["label"].numpy() for batch in batches]
            if min(map(len, found)) == arguments.batch_size:
                yield found


def _permutation(folder: Path, arguments: argparse.Namespace) -> _Batches:
    """The batches of a table whose rows are all shuffled together."""
    labels = _labels(arguments.rows)[np.random.default_rng(1).permutation(arguments.rows)]
    shape = (-1, arguments.ranks, arguments.batch_size)
    whole = arguments.rows // (arguments.ranks * arguments.batch_size)
    steps = labels[: whole * arguments.ranks * arguments.batch_size].reshape(shape)
    return (list(step) for step in itertools.islice(steps, whole))

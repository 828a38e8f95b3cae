"""How well batches mix a table that is sorted by its label, beside petastorm and a permutation.

Counts the labels of the batches that loaders give in one epoch; each turn is another seed. All
ranks' loaders are in this process and take turns, as the ranks of a training do. The table is
written without Spark, except for ``shuffle_seed``, where Spark writes it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ranks.shards import Shard
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import positive
from benchmarks.tables.loader_tables import write_files

HELP = "how well batches of a sorted table mix, beside petastorm"
QUICK = ["--row-groups", "64", "--rows", "400000", "--seeds", "1"]
LABELS = 10
DEFAULT, MANY, SHUFFLED = "as written by default", "1,000 row groups", "shuffle_seed"
DEVIATION, SEEN, STEPS = "deviation", "labels in a batch", "batches"
MOST_DEVIATION = 1.2
GOALS = {DEFAULT: (0.0, 0.0), MANY: (1 / MOST_DEVIATION, 0.9), SHUFFLED: (0.98, 0.98)}
"""For each table how many times as good as a permutation's deviation and labels are to be."""

_Batches = Iterator[list[Any]]
"""For each step the labels ``[batch]`` of each rank."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--rows", type=positive, default=1_000_000)
    parser.add_argument("--ranks", type=positive, default=8)
    parser.add_argument("--batch-size", type=positive, default=64, help="of a rank")
    parser.add_argument("--row-groups", nargs="*", type=positive, default=[64, 1000])
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument("--without-spark", action="store_true", help="leave shuffle_seed out")


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A case for each table."""
    rows = arguments.rows
    # As Spark writes the table sorted: a file for each core, of one row group each.
    default = partial(_write, rows, len(os.sched_getaffinity(0)))
    tables: dict[str, Callable[[Path], None]] = {DEFAULT: default}
    tables |= {f"{one:,} row groups": partial(_write, rows, one) for one in arguments.row_groups}
    if not arguments.without_spark:
        tables[SHUFFLED] = partial(_write_by_spark, default)
    for name, write in tables.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "table"
            write(folder)
            yield _case(name, folder, arguments)


def _case(name: str, folder: Path, arguments: argparse.Namespace) -> Case:
    def side(read: Callable[..., _Batches]) -> Callable[[], dict[str, float]]:
        seeds = count(1)
        return lambda: _counted(read(folder, arguments, next(seeds)))

    deviation, labels = GOALS.get(name, (1 / MOST_DEVIATION, 0.0))
    return Case(
        name=name,
        figures={
            DEVIATION: Figure(unit="", better="less", least_ratios={"arrow": deviation}),
            SEEN: Figure(unit="", better="more", least_ratios={"arrow": labels}),
            STEPS: Figure(unit="", better="more", least_ratios={"arrow": 1.0}),
        },
        ours={"arrow": side(partial(_read, "arrow"))},
        peers={
            "petastorm_batched": side(partial(_read, "petastorm_batched")),
            "permutation": side(_permutation),
        },
        turns=arguments.seeds,
        turns_repeat=False,
        facts={
            "ranks": f"{arguments.ranks}, in one process",
            "batch of a rank": arguments.batch_size,
            "global batch": arguments.ranks * arguments.batch_size,
            DEVIATION: "of a global batch's labels from the table's, mean of an epoch",
            SEEN: f"of {LABELS}, in a batch of a rank",
        },
    )


def _counted(batches: _Batches) -> dict[str, float]:
    """Means over the steps and ranks of an epoch, of whole batches alone."""
    deviations: list[float] = []
    labels: list[float] = []
    for step in batches:
        counts = np.array([np.bincount(one, minlength=LABELS) for one in step])
        labels.append(float((counts > 0).sum(axis=1).mean()))
        shares = counts.sum(axis=0) / counts.sum()
        deviations.append(float(np.abs(shares - 1 / LABELS).sum() / 2))
    if not labels:  # petastorm has no batch where there are fewer row groups than ranks.
        return {}
    return {
        DEVIATION: float(np.mean(deviations)),
        SEEN: float(np.mean(labels)),
        STEPS: len(labels),
    }


def _labels(rows: int) -> Any:
    return np.arange(rows) * LABELS // rows


def _write(rows: int, groups: int, folder: Path) -> None:
    import pyarrow as pa

    values = np.random.default_rng(0).random((rows, 8), dtype=np.float32)
    columns = {f"c{number}": values[:, number] for number in range(8)}
    whole, files = pa.table({"label": _labels(rows), **columns}), min(8, groups)
    ends = [rows * number // files for number in range(files + 1)]
    parts = (whole.slice(begin, end - begin) for begin, end in pairwise(ends))
    write_files(((part, -(-groups // files)) for part in parts), folder)


def _write_by_spark(write: Callable[[Path], None], folder: Path) -> None:
    from sparkdl_runner.data import make_spark_converter
    from sparkdl_runner.jobs.spark.session import start_spark

    source = folder.with_name("source")
    write(source)
    spark = start_spark("mixing benchmark", slots=2)
    try:
        frame = spark.read.parquet(*map(str, sorted(source.glob("*.parquet"))))
        cache = f"file://{folder.with_name('cache')}"
        spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", cache)
        converter = make_spark_converter(frame, shuffle_seed=7)
        Path(converter.cache_dir_url.removeprefix("file://")).rename(folder)
    finally:
        spark.stop()


def _read(engine: str, folder: Path, arguments: argparse.Namespace, seed: int) -> _Batches:
    from benchmarks.ranks.loader_readers import ENGINES

    size, ranks = arguments.batch_size, arguments.ranks
    where = Shard(table="sorted", folder=str(folder), batch_size=size, ranks=ranks, seed=seed)
    loaders = [ENGINES[engine](replace(where, rank=rank)) for rank in range(ranks)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ours warns of sorted tables.
        for batches in zip(*loaders, strict=False):  # Not all shards are equally long.
            labels = [batch["label"].numpy() for batch in batches]
            if min(map(len, labels)) == size:
                yield labels


def _permutation(folder: Path, arguments: argparse.Namespace, seed: int) -> _Batches:
    """The batches of a table whose rows are all shuffled together."""
    labels = _labels(arguments.rows)[np.random.default_rng(seed).permutation(arguments.rows)]
    whole = len(labels) // (arguments.ranks * arguments.batch_size)
    shape = (whole, arguments.ranks, arguments.batch_size)
    return (list(step) for step in labels[: int(np.prod(shape))].reshape(shape))

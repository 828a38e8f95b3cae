"""How well batches mix a table that is sorted by its label, beside petastorm and a permutation.

Counts the labels of the batches that loaders give in one epoch; each turn is another seed. All
ranks' loaders are in this process and take turns.
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
import pyarrow as pa

from benchmarks.ranks.shards import FACTS
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import Shard, write_files

HELP = "how well batches of a sorted table mix, beside petastorm"
LABELS, RANKS, BATCH_SIZE = 10, 8, 64
DEFAULT = "as written by default"
DEVIATION, SEEN, STEPS = "deviation", "labels in a batch", "batches"
GOALS = {DEFAULT: (0, 0), "1,000 row groups": (1 / 1.2, 0.9)}
"""By table how many times as good as its peers the deviation and labels are to be; 0: no goal."""

_Batches = Iterator[Any]  # For each step the labels [batch] of each rank.

OPTIONS = (
    Option("rows", 500_000, quick=200_000),
    Option("row-groups", [64, 1000], quick=[64]),
    Option("seeds", 6, quick=1),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A case for each table."""
    # As Spark writes the table sorted: a file for each core, of one row group each.
    tables = {DEFAULT: len(os.sched_getaffinity(0))}
    tables |= {f"{one:,} row groups": one for one in arguments.row_groups}
    for name, groups in tables.items():
        with tempfile.TemporaryDirectory() as folder:
            _write(arguments.rows, groups, Path(folder))
            yield _case(name, folder, arguments.rows, arguments.seeds)


def _case(name: str, folder: str, rows: int, turns: int) -> Case:
    shard = Shard(table="sorted", folder=folder, batch_size=BATCH_SIZE, ranks=RANKS)

    def side(read: Callable[[Shard], _Batches]) -> Callable[[], dict[str, float]]:
        seeds = count(1)
        return lambda: _counted(read(replace(shard, seed=next(seeds))))

    deviation, labels = ({"arrow": one} if one else {} for one in GOALS.get(name, (1 / 1.2, 0)))
    return Case(
        name=name,
        figures={
            DEVIATION: Figure(unit="", better="less", least_ratios=deviation),
            SEEN: Figure(unit="", better="more", least_ratios=labels),
            STEPS: Figure(unit="", better="more", least_ratios={"arrow": 1.0}),
        },
        ours={"arrow": side(partial(_read, "arrow"))},
        peers={
            "petastorm_batched": side(partial(_read, "petastorm_batched")),
            "permutation": side(partial(_permutation, rows)),
        },
        turns=turns,
        turns_repeat=False,
        facts={
            "ranks": RANKS,
            "petastorm": FACTS["petastorm"],
            "processes": "one, in which the ranks' loaders take turns",
            "scaling": "strong",
            "batch of a rank": BATCH_SIZE,
            "global batch": RANKS * BATCH_SIZE,
            DEVIATION: "of a global batch's labels from the table's, mean of an epoch",
        },
    )


def _counted(batches: _Batches) -> dict[str, float]:
    """Means over the steps and ranks of an epoch, of whole batches alone."""
    counts = [[np.bincount(one, minlength=LABELS) for one in step] for step in batches]
    if not counts:  # petastorm has no batch where there are fewer row groups than ranks.
        return {}
    of_ranks = np.array(counts)  # [steps, ranks, labels]
    shares = of_ranks.sum(axis=1) / of_ranks.sum(axis=(1, 2))[:, None]
    return {
        DEVIATION: float(np.abs(shares - 1 / LABELS).sum(axis=1).mean() / 2),
        SEEN: float((of_ranks > 0).sum(axis=2).mean()),
        STEPS: len(counts),
    }


def _write(rows: int, groups: int, folder: Path) -> None:
    values = np.random.default_rng(0).random((8, rows), dtype=np.float32)
    columns = {f"c{number}": one for number, one in enumerate(values)}
    whole = pa.table({"label": np.arange(rows) * LABELS // rows, **columns})
    files = min(8, groups)
    ends = [rows * number // files for number in range(files + 1)]
    parts = (whole.slice(begin, end - begin) for begin, end in pairwise(ends))
    write_files(((part, -(-groups // files)) for part in parts), folder, keep_footers=False)


def _read(engine: str, shard: Shard) -> _Batches:
    from benchmarks.peers.table_readers import ENGINES

    loaders = [ENGINES[engine](replace(shard, rank=rank)) for rank in range(shard.ranks)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ours warns of sorted tables.
        for batches in zip(*loaders, strict=False):  # Not all shards are equally long.
            labels = [batch["label"].numpy() for batch in batches]
            if min(map(len, labels)) == shard.batch_size:
                yield labels


def _permutation(rows: int, shard: Shard) -> _Batches:
    """The batches of a table whose rows are all shuffled together."""
    mixed = np.random.default_rng(shard.seed).permutation(rows) * LABELS // rows
    a_step = shard.ranks * shard.batch_size
    return iter(mixed[: rows // a_step * a_step].reshape(-1, shard.ranks, shard.batch_size))

"""Loaders beside each other: rows/s and memory of every engine, on the same files.

Every measurement is a set of fresh processes, one for each rank, which have made their imports and
begin together. The order of rows follows from the seed, and so did the speed at times: the last
case reads one shard of the arrays with another seed in each turn, and the worst one counts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.ranks.shards import FACTS, FIGURES, FIRST_BATCH, SPEED, measured
from benchmarks.suite.case import Case
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import TABLES, Shard, write_table

HELP = "batches, and the worst seed, beside petastorm's loader"
FILES, BATCH_SIZE = 8, 1024
PEERS = ("petastorm_batched", "petastorm_unmixed", "naive")

OPTIONS = (
    Option("tables", ["array", "scalar"], choices=list(TABLES)),
    Option("rows", 2_000_000, quick=200_000),
    Option("ranks", 2),
    Option("repeat", 3, quick=1, help="readings by each engine"),
    Option("seeds", 25, quick=2, type=int, help="one a turn"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A case for each table, and one of seeds."""
    for table in arguments.tables:
        with tempfile.TemporaryDirectory() as folder:
            write_table(table, Path(folder), rows=arguments.rows, files=FILES, keep_footers=False)
            yield _engines(table, folder, arguments)
    if arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows = arguments.rows // 2
            write_table("array", Path(folder), rows=rows, files=FILES, keep_footers=False)
            yield _seeds(folder, arguments)


def _engines(table: str, folder: str, arguments: argparse.Namespace) -> Case:
    ranks = arguments.ranks
    where = {"table": table, "folder": folder, "batch_size": BATCH_SIZE, "ranks": ranks}
    shards = [Shard(**where, rank=rank) for rank in range(ranks)]
    return Case(
        name=table,
        figures=FIGURES,
        ours={"arrow": partial(measured, "arrow", *shards)},
        peers={one: partial(measured, one, *shards) for one in PEERS},
        limits={"decode_only": partial(measured, "decode_only", *shards)},
        turns=arguments.repeat,
        facts={
            **FACTS,
            "ranks": ranks,
            "scaling": "strong",
            "batch of a rank": BATCH_SIZE,
            "global batch": ranks * BATCH_SIZE,
            "bytes of a row": TABLES[table][1],
        },
    )


def _seeds(folder: str, arguments: argparse.Namespace) -> Case:
    """Few large row groups, as a conversion by default makes them; shards take turns too."""
    ranks = arguments.ranks
    where = Shard(table="array", folder=folder, batch_size=BATCH_SIZE, ranks=ranks)

    def read(engine: str, seeds: Iterator[int]) -> dict[str, Any]:
        seed = next(seeds)
        return measured(engine, replace(where, rank=seed % ranks, seed=seed))

    return Case(
        name="seeds",
        figures={
            **FIGURES,
            SPEED: replace(FIGURES[SPEED], least_worst_ratios={"arrow": 3.0}),
            FIRST_BATCH: replace(FIGURES[FIRST_BATCH], bound=0.3),
        },
        ours={"arrow": partial(read, "arrow", count(1))},
        peers={"petastorm_batched": partial(read, "petastorm_batched", count(1))},
        turns=arguments.seeds,
        turns_repeat=False,
        facts={**FACTS, "ranks": f"1 of {ranks}, alone", "batch of a rank": BATCH_SIZE},
    )

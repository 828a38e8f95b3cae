"""Arrays in few large row groups, as a conversion by default has them, for many seeds.

The order of rows follows from the seed, and so did the speed at times: each turn is another seed,
and the worst one counts. One shard is read, the other one in every second turn.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.ranks.shards import FACTS, FIGURES, FIRST_BATCH, SPEED, measured
from benchmarks.suite.case import Case
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import write_table
from benchmarks.tables.shard import Shard

HELP = "the loader's worst seed, beside petastorm"
RANKS = 2

OPTIONS = (
    Option("seeds", 25, quick=4),
    Option("rows", 1_000_000),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """One case, each turn of which reads a shard with the next seed."""
    with tempfile.TemporaryDirectory() as folder:
        write_table("array", Path(folder), rows=arguments.rows, files=8, keep_footers=False)
        where = Shard(table="array", folder=folder, batch_size=1024, ranks=RANKS)

        def read(side: str, seeds: Iterator[int]) -> dict[str, float]:
            seed = next(seeds)
            return measured(side, replace(where, rank=seed % RANKS, seed=seed))

        yield Case(
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
            facts={
                **FACTS,
                "each turn": "the next seed, from 1 on",
                "ranks": f"1 of {RANKS}, alone",
                "batch of a rank": where.batch_size,
            },
        )

"""The loader on random tables with random settings, beside petastorm and a loop written by hand.

The worst case counts here, not the median of friendly ones: each turn is another table. All sides
read the same shard of it for one epoch, each with a fresh loader in a fresh process, which has made
its imports; no memory is warmed or held for any.

petastorm reads no texts and no ragged lists into tensors, and no shard without a row group: it is
left out there. The loop by hand is in ``loader_readers.py``. It shuffles each row group by itself,
mixes none, checks no file and keeps no limit of memory.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import tee
from pathlib import Path

from benchmarks.ranks.shards import BY_PROCESSOR, FACTS, FIGURES, SPEED, measured
from benchmarks.suite.case import Case
from benchmarks.suite.options import positive
from benchmarks.tables.random_tables import RandomTable, written

HELP = "the loader's worst case: random tables, beside petastorm and a loop by hand"
QUICK = ["--tables", "6"]
JUDGED_ROWS = 200_000
JUDGED = f"from {JUDGED_ROWS:,} rows on"
"""Tables of so many rows have to keep the goals, by processor time."""
WORST_TIMES, MEDIAN_TIMES = {"arrow": 1.0}, {"arrow": 1.5}
SIDES = ("arrow", "naive", "petastorm_batched")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--tables", type=positive, default=60, help="how many are read")
    parser.add_argument("--only", type=int, nargs="+", help="only these of them, from 0")
    parser.add_argument("--seed", type=int, default=1, help="of the random tables")


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """One case, each turn of which writes a table, reads it with each engine, and removes it."""
    indices = arguments.only or list(range(arguments.tables))
    judged = replace(FIGURES[SPEED], least_ratios=MEDIAN_TIMES, least_worst_ratios=WORST_TIMES)
    with tempfile.TemporaryDirectory() as folder:
        tables = tee(written(arguments.seed, indices, Path(folder)), len(SIDES))
        ours, *peers = (
            (side, partial(_read_next, side, own)) for side, own in zip(SIDES, tables, strict=True)
        )
        yield Case(
            name="random tables",
            figures={key: FIGURES[key] for key in (SPEED, BY_PROCESSOR)} | {JUDGED: judged},
            ours=dict([ours]),
            peers=dict(peers),
            turns=len(indices),
            turns_repeat=False,
            facts={**FACTS, "turns": f"the tables {indices} of seed {arguments.seed}"},
        )


def _read_next(side: str, tables: Iterator[RandomTable]) -> dict[str, float]:
    """Reads the table of this turn, which the first side of the turn has written."""
    how, shard = next(tables)
    found = measured(side, shard)
    if found and how["rows"] >= JUDGED_ROWS:
        found[JUDGED] = found[BY_PROCESSOR]
    print(f"  {side}: {found.get(BY_PROCESSOR, 0):,.0f} rows a second of a core", flush=True)
    return found

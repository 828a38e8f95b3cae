"""The loader on random tables with random settings, beside petastorm and a loop written by hand.

The worst case counts here, not the median of friendly ones: each turn is another table. All sides
read the same shard of it for one epoch, each with a fresh loader in a fresh process, which has made
its imports. petastorm is left out where it reads nothing into tensors: texts, ragged lists, shards
without a row group. The loop by hand mixes no row groups, checks no file and limits no memory.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import tee
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from benchmarks.ranks.shards import BY_PROCESSOR, FACTS, FIGURES, SPEED, measured
from benchmarks.suite.case import Case
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import TABLES, Shard, write_table

HELP = "the loader's worst case: random tables, beside petastorm and a loop by hand"
SIDES = ("arrow", "naive", "petastorm_batched")
KINDS = ("int", "scalar", "array", "string", "ragged")
MOST_BYTES = 400_000_000  # Of a table's values, decoded.
FEWEST_ROWS, MOST_ROWS = 50_000, 4_000_000
MOST_FILES, MOST_GROUPS, MOST_RANKS = 20_000, 40, 16
FEWEST_OF_A_PIECE = 50  # Rows of a file, and of a row group, at the least.
SMALLEST_BATCH, LARGEST_BATCH = 16, 8192
JUDGED_ROWS = 200_000
JUDGED = f"from {JUDGED_ROWS:,} rows on"
"""Tables of so many rows have to keep the goals, by processor time."""

RandomTable = tuple[dict[str, Any], Shard]
"""How :func:`write_table` is to write it (rows, files, groups, compression), and what is read."""

OPTIONS = (
    Option("tables", 20, quick=3, help="how many are read"),
    Option("only", (), type=int, help="only these of them, from 0"),
    Option("seed", 1, type=int, help="of the random tables"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """One case, each turn of which writes a table, reads it with each engine, and removes it."""
    indices = arguments.only or list(range(arguments.tables))
    figure = FIGURES[BY_PROCESSOR]
    every = (drawn(arguments.seed, index, Path()) for index in indices)
    told = [{**how, **asdict(shard)} for how, shard in every]
    judged = replace(figure, least_ratios={"arrow": 1.5}, least_worst_ratios={"arrow": 1.0})
    with tempfile.TemporaryDirectory() as folder:
        tables = tee(written(arguments.seed, indices, Path(folder)), len(SIDES))
        sides = {side: partial(_read, side, own) for side, own in zip(SIDES, tables, strict=True)}
        yield Case(
            name="random tables",
            figures={SPEED: FIGURES[SPEED], BY_PROCESSOR: figure, JUDGED: judged},
            ours={"arrow": sides.pop("arrow")},
            peers=sides,
            turns=len(indices),
            turns_repeat=False,
            facts={**FACTS, "ranks": "one, of those of its turn", "table of each turn": told},
        )


def _read(side: str, tables: Iterator[RandomTable]) -> dict[str, float]:
    """Reads the table of this turn, which the first side of the turn has written."""
    how, shard = next(tables)
    found = measured(side, shard)
    if found:
        print(f"  {side}: {found[BY_PROCESSOR]:,.0f} rows a second of a core", flush=True)
        found |= {JUDGED: found[BY_PROCESSOR]} if how["rows"] >= JUDGED_ROWS else {}
    return found


def drawn(seed: int, index: int, folder: Path) -> RandomTable:
    """The settings of one table in a folder: the same for the same numbers.

    Rows, files, row groups of a file, ranks and batch sizes are drawn log-uniformly, so that there
    are as many of tens as of thousands. Two of three are shuffled, half are compressed.
    """
    random = np.random.default_rng([seed, index])

    def between(least: int, most: int) -> int:
        return min(most, int(np.exp(random.uniform(np.log(least), np.log(most + 1)))))

    kind = str(random.choice(KINDS))
    rows = between(FEWEST_ROWS, min(MOST_ROWS, MOST_BYTES // TABLES[kind][1]))
    files = between(1, min(MOST_FILES, rows // FEWEST_OF_A_PIECE))
    groups = between(1, max(1, min(MOST_GROUPS, rows // files // FEWEST_OF_A_PIECE)))
    compression = str(random.choice(["none", "snappy"]))
    ranks = between(1, MOST_RANKS)
    shard = Shard(
        table=kind,
        folder=str(folder / f"table-{index}"),
        batch_size=between(SMALLEST_BATCH, LARGEST_BATCH),
        rank=int(random.integers(ranks)),
        ranks=ranks,
        shuffle=bool(random.integers(3)),
        seed=int(random.integers(1 << 31)),
    )
    return {"rows": rows, "files": files, "groups": groups, "compression": compression}, shard


def written(seed: int, indices: Sequence[int], folder: Path) -> Iterator[RandomTable]:
    """Writes one table after the other, and removes the one before."""
    for index in indices:
        how, shard = drawn(seed, index, folder)
        print(f"  #{index}: {how} {shard}", flush=True)
        write_table(shard.table, Path(shard.folder), **how, keep_footers=False)
        yield how, shard
        rmtree(shard.folder)

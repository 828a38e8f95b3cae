"""Loaders beside each other: rows/s and memory of every engine, on the same files.

Every measurement is a set of fresh processes, one for each rank, which have made their imports and
begin together.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.ranks.shards import FACTS, FIGURES, Shard, measured
from benchmarks.suite.case import Case
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import TABLES, write_table

HELP = "batches, beside petastorm's loader"
FILES, BATCH_SIZE = 8, 1024

OPTIONS = (
    Option("tables", ["array", "scalar"], choices=list(TABLES)),
    Option("rows", 2_000_000, quick=200_000),
    Option("ranks", 2),
    Option("repeat", 3, quick=1, help="readings by each engine"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A case for each table."""
    ranks = range(arguments.ranks)
    for table in arguments.tables:
        with tempfile.TemporaryDirectory() as folder:
            write_table(table, Path(folder), rows=arguments.rows, files=FILES, keep_footers=False)
            where = {"table": table, "folder": folder, "batch_size": BATCH_SIZE}
            shards = [Shard(**where, rank=rank, ranks=len(ranks)) for rank in ranks]
            yield Case(
                name=table,
                figures=FIGURES,
                ours={"arrow": partial(measured, "arrow", *shards)},
                peers={
                    one: partial(measured, one, *shards) for one in ("petastorm_batched", "naive")
                },
                limits={"decode_only": partial(measured, "decode_only", *shards)},
                turns=arguments.repeat,
                facts={
                    **FACTS,
                    "ranks": len(ranks),
                    "scaling": "strong",
                    "batch of a rank": BATCH_SIZE,
                    "global batch": len(ranks) * BATCH_SIZE,
                    "bytes of a row": TABLES[table][1],
                },
            )

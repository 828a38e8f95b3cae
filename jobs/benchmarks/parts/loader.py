"""Loaders beside each other: rows/s and memory of every engine, on the same files.

Every measurement is a set of fresh processes, one for each rank, which have made their imports and
begin together. petastorm's row loader is slow, and reads smaller shards: as many as files.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.ranks.shards import FACTS, FIGURES, READ_BY, measured
from benchmarks.suite.case import Case, Measure
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import TABLES, write_table
from benchmarks.tables.shard import Shard

HELP = "batches, beside petastorm's loaders"
OURS = ("arrow", "arrow_matrix")
PEERS = ("petastorm_batched", "petastorm_row", "naive")
LIMITS = ("decode_only",)
ENGINES = (*OURS, *PEERS, *LIMITS)
FILES = 8

OPTIONS = (
    Option("tables", ["array", "scalar"], choices=list(TABLES)),
    Option("engines", list(ENGINES), choices=ENGINES),
    Option("rows", 2_000_000, quick=400000),
    Option("batch-size", 1024, help="of a rank"),
    Option("ranks", 2),
    Option("repeat", 3, quick=2, help="readings by each engine"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A case for each table."""
    for table in arguments.tables:
        with tempfile.TemporaryDirectory() as folder:
            write_table(table, Path(folder), rows=arguments.rows, files=FILES, keep_footers=False)
            yield _case(table, folder, arguments)


def _case(table: str, folder: str, arguments: argparse.Namespace) -> Case:
    size, ranks = arguments.batch_size, arguments.ranks
    where = Shard(table=table, folder=folder, batch_size=size, ranks=ranks)

    def sides(engines: Sequence[str]) -> dict[str, Measure]:
        found: dict[str, Measure] = {}
        for engine in engines:
            if engine in arguments.engines and table in READ_BY.get(engine, TABLES):
                count = max(FILES, ranks) if engine == "petastorm_row" else ranks
                shards = [replace(where, rank=rank, ranks=count) for rank in range(ranks)]
                found[engine] = partial(measured, engine, *shards)
        return found

    return Case(
        name=table,
        figures=FIGURES,
        ours=sides(OURS),
        peers=sides(PEERS),
        limits=sides(LIMITS),
        turns=arguments.repeat,
        facts={
            **FACTS,
            "ranks": ranks,
            "scaling": "strong",
            "batch of a rank": size,
            "global batch": ranks * size,
            "bytes of a row": TABLES[table][1],
            "petastorm_row": "a smaller shard, to its end: it is slow",
        },
    )

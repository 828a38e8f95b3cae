"""Random tables, written and read with random settings: those that no one would choose as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from benchmarks.ranks.shards import Shard
from benchmarks.tables.loader_tables import TABLES, write_table

KINDS = ("int", "scalar", "array", "string", "ragged")
MOST_BYTES = 400_000_000
"""Of a table's values, decoded."""
FEWEST_ROWS, MOST_ROWS = 50_000, 4_000_000
MOST_FILES, MOST_GROUPS, MOST_RANKS = 20_000, 40, 16
FEWEST_OF_A_PIECE = 50
"""Rows of a file, and of a row group, at the least."""
SMALLEST_BATCH, LARGEST_BATCH = 16, 8192

RandomTable = tuple[dict[str, Any], Shard]
"""The arguments of :func:`write_table` for rows, files, groups and compression; what is read."""


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

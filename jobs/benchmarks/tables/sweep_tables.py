"""The tables of the sweep, and the random settings by which each is written and read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.loader_tables import TABLES

MOST_BYTES = 400_000_000
"""Of a table's values, decoded."""
FEWEST_ROWS, MOST_ROWS = 50_000, 4_000_000
MOST_FILES, MOST_GROUPS, MOST_RANKS = 20_000, 40, 16
FEWEST_OF_A_PIECE = 50
"""Rows of a file, and of a row group, at the least."""
SMALLEST_BATCH, LARGEST_BATCH = 16, 8192

_Make = Callable[[np.random.Generator, int], dict[str, Any]]


def _columns(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {f"c{number:02}": random.random(rows, dtype=np.float32) for number in range(40)}


def _ragged(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {"x": TABLES["ragged"][0](random, rows)["visits"]}


KINDS: dict[str, tuple[_Make, int]] = {
    "ints": TABLES["int"],
    "columns": (_columns, 160),
    "arrays": TABLES["array"],
    "texts": TABLES["string"],
    "ragged": (_ragged, 32 * 8 + 8),
}
"""For each kind of table the function that makes its columns, and the bytes of a row."""


def shape(seed: int, index: int) -> dict[str, Any]:
    """The settings of one table and of how it is read: the same for the same numbers.

    Rows, files, row groups of a file, ranks and batch sizes are drawn log-uniformly, so that there
    are as many of tens as of thousands. Two of three are shuffled, half are compressed.
    """
    random = np.random.default_rng([seed, index])
    kind = str(random.choice(list(KINDS)))
    rows = _drawn(random, FEWEST_ROWS, min(MOST_ROWS, MOST_BYTES // KINDS[kind][1]))
    files = _drawn(random, 1, min(MOST_FILES, rows // FEWEST_OF_A_PIECE))
    groups = _drawn(random, 1, max(1, min(MOST_GROUPS, rows // files // FEWEST_OF_A_PIECE)))
    world = _drawn(random, 1, MOST_RANKS)
    return {
        "index": index,
        "kind": kind,
        "rows": rows,
        "files": files,
        "groups": groups,
        "compression": str(random.choice(["none", "snappy"])),
        "world": world,
        "shard": int(random.integers(world)),
        "batch": _drawn(random, SMALLEST_BATCH, LARGEST_BATCH),
        "shuffle": bool(random.integers(3)),
        "seed": int(random.integers(1 << 31)),
    }


def _drawn(random: np.random.Generator, least: int, most: int) -> int:
    return min(most, int(np.exp(random.uniform(np.log(least), np.log(most + 1)))))


def write(one: dict[str, Any], folder: Path) -> None:
    """Writes the files of a shape, and their manifest."""
    import pyarrow as pa
    import pyarrow.fs
    import pyarrow.parquet as pq

    from sparkdl_runner.data.dataset.describe import describe_parquet

    random = np.random.default_rng(one["index"])
    make, rows, files = KINDS[one["kind"]][0], one["rows"], one["files"]
    names = []
    for number in range(files):
        count = rows * (number + 1) // files - rows * number // files
        names.append(f"part-{number:05}.parquet")
        pq.write_table(
            pa.table(make(random, count)),
            folder / names[-1],
            compression=one["compression"],
            row_group_size=-(-count // one["groups"]),
        )
    local = pa.fs.LocalFileSystem()
    describe_parquet(local, str(folder), names).write(local, str(folder))

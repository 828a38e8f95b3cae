"""The tables that loaders are measured on, and the files of all tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

LIST_LENGTH = 64  # The longest.
GROUP_BYTES = 32 << 20
THREADS = 2  # That decode for a rank, whatever reads.
PETASTORM_ROWS = 50_000
"""Among which petastorm shuffles, wherever rows are shuffled. By default it leaves those of a row
group in their order. Its ``shuffle_rows`` can be faster than this queue, but mixes no row groups:
that is ``petastorm_unmixed``."""
_Parts = Iterable[tuple[pa.Table, int]]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The rows of a table that one rank reads, their order, and the size of its batches."""

    table: str
    folder: str
    batch_size: int
    rank: int = 0
    ranks: int = 1
    shuffle: bool = True
    seed: int = 0


def _array_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {"x": lists(np.full(rows, 64), random.random(rows * 64, dtype=np.float32))}


def _scalar_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    names = [f"c{index:02}" for index in range(33)]
    columns = {name: random.random(rows, dtype=np.float32) for name in names}
    return {**columns, "label": random.integers(0, 10, rows)}


def _int_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {name: random.integers(0, 1 << 40, rows) for name in ("user", "item")}


def _list_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    lengths = random.integers(0, LIST_LENGTH + 1, rows)
    return {"visits": lists(lengths, random.integers(0, 1 << 40, lengths.sum()))}


def _string_table(random: np.random.Generator, rows: int) -> dict[str, Any]:
    offsets = _offsets(random.integers(5, 61, rows))
    letters = random.integers(97, 123, offsets[-1], np.uint8)
    return {"text": pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))}


def lists(lengths: Any, values: Any) -> pa.ListArray:
    """A column of lists of these lengths [rows]."""
    return pa.ListArray.from_arrays(pa.array(_offsets(lengths)), pa.array(values))


def _offsets(lengths: Any) -> Any:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


TABLES: dict[str, tuple[Callable[[np.random.Generator, int], dict[str, Any]], int]] = {
    "array": (_array_table, 256),
    "scalar": (_scalar_table, 33 * 4 + 8),
    "int": (_int_table, 16),
    "ragged": (_list_table, LIST_LENGTH * 4 + 8),
    "string": (_string_table, 33),
}
"""For each table the function that makes its columns, and the bytes of a row in a batch."""


def write_table(
    table: str, directory: Path, *, rows: int, files: int, groups: int | None = None, **how: Any
) -> None:
    """Writes a table's files, of so many row groups each, by default of 32 MiB, and a manifest."""
    make, row_bytes = TABLES[table]
    random = np.random.default_rng(0)
    counts = [rows * (one + 1) // files - rows * one // files for one in range(files)]
    parts = (
        (pa.table(make(random, count)), groups or -(-count // (GROUP_BYTES // row_bytes)))
        for count in counts
    )
    write_files(parts, directory, **how)


def write_files(
    parts: _Parts, directory: Path, *, keep_footers: bool = True, **settings: Any
) -> None:
    """Writes the tables of files, each in so many row groups, a manifest, and all footers again.

    The settings are those of Parquet's writer.
    """
    import pyarrow.fs
    import pyarrow.parquet as pq

    from sparkdl_runner.data.dataset.describe import describe_parquet

    directory.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    for table, groups in parts:
        names.append(f"part-{len(names):05}.parquet")
        size = -(-len(table) // groups)
        pq.write_table(table, directory / names[-1], size, **{"compression": "none", **settings})
    local = pyarrow.fs.LocalFileSystem()
    manifest = describe_parquet(local, str(directory), names, keep_footers=keep_footers)
    manifest.write(local, str(directory))

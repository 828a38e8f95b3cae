"""The tables of the memory benchmark, and how each is read.

Some are written without dictionaries, so that their files are as large as their values. The encoded
ones are written as Spark does: values that come again take a place in a dictionary, and a row
group, whose size is that of the file, has a hundred times its bytes in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.tables.jpegs import jpegs
from benchmarks.tables.loader_tables import GROUP_BYTES, lists, write_files
from benchmarks.tables.loader_tables import TABLES as LOADER_TABLES

_PAGE_ROWS, _MOST_PAGE_ROWS = 100, 20_000
"""Spark looks at the size of a page after so many rows, and ends it after so many."""
_Random = np.random.Generator


@dataclass(frozen=True)
class MemoryTable:
    """A table: what makes columns of so many rows, how many, and the loader's arguments.

    ``row_bytes``, of a row in the file, is how many of them fill a row group; without it the table
    is one row group, encoded. It is read within ``budget_mib``; 0 is the loader's default, since
    some need more than 64: a page that pyarrow writes may have 1,024 rows, however large.
    """

    make: Callable[[_Random, int], dict[str, Any]]
    rows: int
    row_bytes: int | None
    reading: Mapping[str, Any]
    budget_mib: int = 64

    @property
    def spare_bytes(self) -> int:
        """Memory that reading may take in addition to 1.1 times its budget."""
        return 0 if self.row_bytes else 20 << 20

    def write(self, folder: Path, rows: int) -> None:
        """Writes files of a row group each, and their manifest."""
        random = np.random.default_rng(0)
        group_rows = GROUP_BYTES // self.row_bytes if self.row_bytes else rows
        counts = [min(group_rows, rows - begin) for begin in range(0, rows, group_rows)]
        groups = ((pa.table(self.make(random, count)), 1) for count in counts)
        settings: dict[str, Any] = {"use_dictionary": False, "write_batch_size": _PAGE_ROWS}
        if not self.row_bytes:  # Places in a dictionary take about a byte each.
            settings = {"data_page_size": _MOST_PAGE_ROWS, "write_batch_size": 1000}
        write_files(groups, folder, keep_footers=False, **settings)


def _images(random: _Random, rows: int) -> dict[str, Any]:
    pictures = jpegs(500, 375, 64)
    return {"image": [pictures[at] for at in random.integers(0, len(pictures), rows).tolist()]}


def _documents(random: _Random, rows: int) -> dict[str, Any]:
    """As many documents of each order of magnitude, from 1 to 100,000 tokens."""
    lengths = np.exp(random.uniform(0, np.log(100_000), rows)).astype(np.int64).clip(1, 100_000)
    return {"tokens": lists(lengths, random.integers(0, 50_000, lengths.sum(), dtype=np.int32))}


def _passages(random: _Random, rows: int) -> dict[str, Any]:
    """Texts of 2,000 letters, each of which many rows have."""
    texts = [random.integers(97, 123, 2_000, dtype=np.uint8).tobytes().decode() for _ in range(400)]
    places = pa.array(random.integers(0, len(texts), rows, dtype=np.int32))
    return {"id": np.arange(rows), "text": pa.DictionaryArray.from_arrays(places, pa.array(texts))}


def _token_lists(random: _Random, rows: int) -> dict[str, Any]:
    """Tokenized texts: three lists of 64-bit integers in each row."""
    lengths = random.integers(1, 257, rows)
    count = lengths.sum()
    tokens, types = random.integers(0, 30_000, count), random.integers(0, 2, count)
    values = {"tokens": tokens, "types": types, "mask": np.ones(count, dtype=np.int64)}
    return {name: lists(lengths, one) for name, one in values.items()}


def _encoded(make: Any, rows: int, **reading: Any) -> MemoryTable:
    return MemoryTable(make, rows, None, {"batch_size": 256, **reading})


TABLES: dict[str, MemoryTable] = {
    "two_ints": MemoryTable(LOADER_TABLES["int"][0], 40_000_000, 16, {"batch_size": 1024}),
    "jpegs": MemoryTable(
        _images, 10_000, 30_000, {"batch_size": 32, "images": {"image": (64, 64)}}, 0
    ),
    "ragged_text": MemoryTable(
        _documents, 20_000, 35_000, {"batch_size": 16, "ragged": ["tokens"]}, 0
    ),
    "packed_text": MemoryTable(
        _documents, 20_000, 35_000, {"batch_size": 16, "pack": {"tokens": 4096}}, 0
    ),
    "passages": _encoded(_passages, 400_000),
    "masks_ragged": _encoded(_token_lists, 400_000, ragged=["mask"], columns=["mask"]),
    "tokens_longest": _encoded(_token_lists, 200_000, pad="longest"),
    "tokens_packed": _encoded(_token_lists, 200_000, pack={"tokens": 4096}, columns=["tokens"]),
}
"""By name."""

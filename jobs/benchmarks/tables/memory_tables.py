"""The tables of the memory benchmark, and how each is read.

Some are written without dictionaries, so that their files are as large as their values. Others are
written as Spark does: values that come again take a place in a dictionary, and a row group, whose
size is that of the file, has a hundred times its bytes in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables.samples import jpegs

_MIB = 1 << 20
_GROUP_BYTES = 32 * _MIB
_SPARKS_PAGE_ROWS, _PYARROWS_PAGE_ROWS = 100, 1024
"""After so many rows writers look at the size of a page."""
_SPARKS_PAGE_MOST_ROWS = 20_000
_Random = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class MemoryTable:
    """A table, and how it is read.

    Attributes:
        make: Makes columns of so many rows.
        rows: How many, at scale 1.
        row_bytes: Of a row in the file, which is how many of them fill a row group; None for one
            row group.
        reading: Arguments of the loader.
        is_encoded: Whether values that come again are stored once.
        page_rows: After so many rows the writer looks at the size of a page.
        spare_bytes: What reading may take beside 1.1 times its budget.
    """

    make: Callable[[_Random, int], dict[str, Any]]
    rows: int
    row_bytes: int | None
    reading: dict[str, Any] = field(default_factory=lambda: {"batch_size": 1024})
    is_encoded: bool = False
    page_rows: int = _SPARKS_PAGE_ROWS
    spare_bytes: int = 0

    def write(self, folder: Path, rows: int) -> None:
        """Writes one file, a row group at a time, and its manifest, unless they are there."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from sparkdl_runner.data.dataset.describe import describe_parquet
        from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME

        if (folder / MANIFEST_NAME).exists():
            return
        folder.mkdir(parents=True)
        random = np.random.default_rng(0)
        path = folder / "part-00000.parquet"
        writer = None
        group_rows = rows if self.row_bytes is None else _GROUP_BYTES // self.row_bytes
        for begin in range(0, rows, group_rows):
            made = pa.table(self.make(random, min(group_rows, rows - begin)))
            if writer is None:
                writer = pq.ParquetWriter(path, made.schema, **self._settings())
            writer.write_table(made, row_group_size=group_rows)
        if writer is not None:
            writer.close()
        local = pa.fs.LocalFileSystem()
        manifest = describe_parquet(local, str(folder), [path.name])
        replace(manifest, page_rows=self.page_rows).write(local, str(folder))

    def _settings(self) -> dict[str, Any]:
        settings = {"compression": "none", "use_dictionary": self.is_encoded}
        if not self.is_encoded:
            return {**settings, "write_batch_size": self.page_rows}
        # Spark ends a page after 20,000 rows. Places in a dictionary take about a byte each.
        return {**settings, "data_page_size": _SPARKS_PAGE_MOST_ROWS, "write_batch_size": 1000}


def _ints(columns: int, random: _Random, rows: int) -> dict[str, Any]:
    return {f"c{number}": random.integers(0, 1 << 40, rows) for number in range(columns)}


def _images(random: _Random, rows: int) -> dict[str, Any]:
    pictures = jpegs(500, 375, 64)
    return {"image": [pictures[at] for at in random.integers(0, len(pictures), rows).tolist()]}


def _lists(lengths: Any, values: Any) -> Any:
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))


def _arrays(random: _Random, rows: int) -> dict[str, Any]:
    values = random.random(rows * 64, dtype=np.float32)
    return {"x": _lists(np.full(rows, 64), values)}


def _documents(random: _Random, rows: int) -> dict[str, Any]:
    """As many documents of each order of magnitude, from 1 to 100,000 tokens."""
    lengths = np.exp(random.uniform(0, np.log(100_000), rows)).astype(np.int64).clip(1, 100_000)
    tokens = random.integers(0, 50_000, lengths.sum(), dtype=np.int32)
    return {"tokens": _lists(lengths, tokens)}


def _shared_texts(count: int, letters: int, random: _Random, rows: int) -> dict[str, Any]:
    """Texts of so many letters, each of which many rows have."""
    import pyarrow as pa

    texts = [random.integers(97, 123, letters, dtype=np.uint8).tobytes() for _ in range(count)]
    places = pa.array(random.integers(0, count, rows, dtype=np.int32))
    shared = pa.DictionaryArray.from_arrays(places, pa.array([one.decode() for one in texts]))
    return {"id": np.arange(rows), "text": shared}


def _masks(random: _Random, rows: int) -> dict[str, Any]:
    lengths = random.integers(1, 513, rows)
    return {"mask": _lists(lengths, np.ones(lengths.sum(), dtype=np.int64))}


def _token_lists(random: _Random, rows: int) -> dict[str, Any]:
    """What a tokenizer makes of texts: three lists of 64-bit integers."""
    lengths = random.integers(1, 257, rows)
    total = lengths.sum()
    return {
        "tokens": _lists(lengths, random.integers(0, 30_000, total)),
        "types": _lists(lengths, random.integers(0, 2, total)),
        "mask": _lists(lengths, np.ones(total, dtype=np.int64)),
    }


_IMAGES = {"batch_size": 32, "images": {"image": (64, 64)}}
_encoded = partial(MemoryTable, row_bytes=None, is_encoded=True, spare_bytes=20 * _MIB)
_mask_rows = partial(_encoded, make=_masks, rows=400_000)
_token_rows = partial(_encoded, make=_token_lists, rows=200_000)
_LISTS = ["tokens", "types", "mask"]

TABLES: dict[str, MemoryTable] = {
    "two_ints": MemoryTable(make=partial(_ints, 2), rows=40_000_000, row_bytes=16),
    "one_int": MemoryTable(make=partial(_ints, 1), rows=100_000_000, row_bytes=8),
    "jpegs": MemoryTable(make=_images, rows=20_000, row_bytes=30_000, reading=_IMAGES),
    "jpegs_by_pyarrow": MemoryTable(
        make=_images,
        rows=20_000,
        row_bytes=30_000,
        reading=_IMAGES,
        page_rows=_PYARROWS_PAGE_ROWS,
    ),
    "one_group": MemoryTable(make=_arrays, rows=4_000_000, row_bytes=None),
    "ragged_text": MemoryTable(
        make=_documents,
        rows=20_000,
        row_bytes=35_000,
        reading={"batch_size": 16, "ragged": ["tokens"]},
    ),
    "packed_text": MemoryTable(
        make=_documents,
        rows=20_000,
        row_bytes=35_000,
        reading={"batch_size": 16, "pack": {"tokens": 4096}},
    ),
    "passages": _encoded(
        make=partial(_shared_texts, 400, 2_000), rows=400_000, reading={"batch_size": 256}
    ),
    "long_texts": _encoded(
        make=partial(_shared_texts, 48, 20_000), rows=400_000, reading={"batch_size": 64}
    ),
    "masks_ragged": _mask_rows(reading={"batch_size": 256, "ragged": ["mask"]}),
    "masks_padded": _mask_rows(reading={"batch_size": 256, "pad": 512}),
    "masks_packed": _mask_rows(reading={"batch_size": 256, "pack": {"mask": 4096}}),
    "tokens_ragged": _token_rows(reading={"batch_size": 256, "ragged": _LISTS}),
    "tokens_padded": _token_rows(reading={"batch_size": 256, "pad": 256}),
    "tokens_longest": _token_rows(reading={"batch_size": 256, "pad": "longest"}),
    "tokens_packed": _token_rows(
        reading={"batch_size": 256, "pack": {"tokens": 4096}, "columns": ["tokens"]}
    ),
}
"""By name. The encoded ones are one row group each, as Spark leaves them: their files are small."""

"""Small data sets on local disk, made without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from sparkdl_runner.data.batches.loader import ArrowLoader
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.order import defaults

LOCAL = pa.fs.LocalFileSystem()


def write_groups(directory: Path, table: pa.Table, groups: Sequence[Sequence[int]]) -> Manifest:
    """Writes files whose row groups have the given numbers of rows, and describes them.

    Args:
        directory: Where to, made if need be.
        table: What to write; has as many rows as ``groups`` in total.
        groups: Rows of each row group of each file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    done, names = 0, []
    for number, rows_of_groups in enumerate(groups):
        names.append(f"part-{number:05}.parquet")
        with pq.ParquetWriter(directory / names[-1], table.schema) as writer:
            for rows in rows_of_groups:
                writer.write_table(table.slice(done, rows), row_group_size=max(1, rows))
                done += rows
    assert done == table.num_rows
    manifest = describe_parquet(LOCAL, str(directory), names)
    manifest.write(LOCAL, str(directory))
    return manifest


def numbered(rows: int, width: int = 3) -> pa.Table:
    """Rows ``id``, ``value`` (float32, 2 * id) and ``vector`` (float32 ``[width]``, id + i)."""
    ids = np.arange(rows, dtype=np.int64)
    vectors = (ids[:, None] + np.arange(width)).astype(np.float32)
    return pa.table(
        {
            "id": ids,
            "value": (2 * ids).astype(np.float32),
            "vector": pa.ListArray.from_arrays(
                pa.array(np.arange(rows + 1, dtype=np.int32) * width), pa.array(vectors.ravel())
            ),
        }
    )


def one(directory: Path, table: pa.Table, rows_per_group: int = 3) -> Manifest:
    """One file with row groups of a few rows."""
    whole, rest = divmod(table.num_rows, rows_per_group)
    return write_groups(directory, table, [[rows_per_group] * whole + [rest] * (rest > 0)])


def load(
    directory: Path, manifest: Manifest, *, blocks_bytes: int | None = None, **arguments: Any
) -> ArrowLoader:
    """A loader of a local data set; with ``blocks_bytes``, of small blocks, of which a few rows
    make several."""
    with small_blocks(blocks_bytes):
        return ArrowLoader(manifest, LOCAL, str(directory), **arguments)


def small_blocks(blocks_bytes: int | None) -> AbstractContextManager[Any]:
    """Makes orders whose blocks take so many bytes together."""
    if blocks_bytes is None:
        return nullcontext()
    return mock.patch.object(defaults, "_BLOCKS_BYTES", blocks_bytes)

"""What footers do not say is read from the files in small batches, and once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_sets import LOCAL, write_groups

from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.data.dataset import observe
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.observe import (
    first_file_with_nulls,
    first_file_with_other_lengths,
)
from sparkdl_runner.data.parquet.scan import BATCH_BYTES, scan

VALUE_BYTES = 20_000
ROWS = 2_000


@pytest.fixture(params=["long", "repeated", "lists"])
def table(request: pytest.FixtureRequest) -> pa.Table:
    """40 MB in one row group; of repeated values, the footer counts 20 KB."""
    random = np.random.default_rng(1)
    if request.param == "lists":
        values = pa.array(random.integers(0, 9, ROWS * VALUE_BYTES // 4, np.int32))
        offsets = pa.array(np.arange(ROWS + 1, dtype=np.int32) * (VALUE_BYTES // 4))
        return pa.table({"x": pa.ListArray.from_arrays(offsets, values)})
    if request.param == "repeated":
        return pa.table({"x": pa.array([b"v" * VALUE_BYTES] * ROWS)})
    return pa.table({"x": pa.array([random.bytes(VALUE_BYTES) for _ in range(ROWS)])})


def test_a_batch_takes_so_many_bytes_however_long_its_values(
    tmp_path: Path, table: pa.Table
) -> None:
    file = tmp_path / "0.parquet"
    pq.write_table(table, file, write_statistics=False)
    sizes = [(batch.num_rows, batch.nbytes) for batch in scan(LOCAL, str(file), ["x"])]
    assert sum(rows for rows, _ in sizes) == ROWS
    assert max(size for _, size in sizes) < 1.2 * BATCH_BYTES


def test_a_row_group_without_rows(tmp_path: Path) -> None:
    file = tmp_path / "0.parquet"
    pq.write_table(pa.table({"x": pa.array([], pa.list_(pa.string()))}), file)
    assert sum(batch.num_rows for batch in scan(LOCAL, str(file), ["x"])) == 0
    with pq.ParquetWriter(file, pa.schema([("x", pa.string())])) as writer:
        writer.write_table(pa.table({"x": pa.array([], pa.string())}))
    assert sum(batch.num_rows for batch in scan(LOCAL, str(file), ["x"])) == 0


def test_a_row_group_is_not_in_memory_as_a_whole(tmp_path: Path) -> None:
    rows = 4 << 20  # 32 MiB in pages of 1 MiB
    table = pa.table({"x": np.random.default_rng(1).integers(0, 1 << 40, rows)})
    file = tmp_path / "0.parquet"
    pq.write_table(table, file, row_group_size=rows, use_dictionary=False)
    before = pa.total_allocated_bytes()
    batches = scan(LOCAL, str(file), ["x"])
    first = next(batches)
    assert pa.total_allocated_bytes() - before < 8 << 20
    assert len(first) + sum(len(batch) for batch in batches) == rows


def test_a_folder_is_read_once_for_as_long_as_it_stays(tmp_path: Path, monkeypatch) -> None:
    read: list[str] = []
    real = observe._observe_file

    def counting(filesystem, path, names):
        read.append(path)
        return real(filesystem, path, names)

    monkeypatch.setattr(observe, "_observe_file", counting)
    file = tmp_path / "0.parquet"

    def lengths(rows: list[list[int]], second: float) -> tuple[int | None, ...]:
        pq.write_table(pa.table({"x": rows}), file)
        os.utime(file, (second, second))
        again = [make_spark_converter(f"file://{tmp_path}").open()[0] for _ in range(2)]
        assert again[0] is again[1]
        return again[0].column("x").list_lengths

    assert lengths([[1, 2], [3, 4]], 10.5) == (2,)
    assert lengths([[1], [2]], 20.5) == (1,)
    assert lengths([[3], [4]], 30.5) == (1,)
    assert len(read) == 3


def test_the_file_that_differs_is_found(tmp_path: Path) -> None:
    lists = [[1, 2], [3, 4], [5, None], [6, 7, 8]]
    manifest = write_groups(tmp_path, pa.table({"x": lists, "y": [1, 2, 3, 4]}), [[1]] * 4)
    third, last = (file.path for file in manifest.files[2:])
    dataset = Dataset(manifest, LOCAL, str(tmp_path))
    assert first_file_with_nulls(dataset, "x") == third
    assert first_file_with_nulls(dataset, "y") is None
    assert first_file_with_other_lengths(dataset, "x") == (last, "3")

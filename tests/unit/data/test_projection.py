"""Reading a file in which columns of the table have another name or type, or are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl_runner.data.dataset.view.view import Projection

ID, PLACE, NEW = ("id", pa.int64()), ("place", pa.string()), ("new", pa.int32())


@pytest.mark.parametrize("columns", [[PLACE, ID, NEW], [ID], [PLACE], [NEW, PLACE]])
@pytest.mark.parametrize("gone", [[], [9], [0, 1, 2, 3, 5]])
def test_a_row_group_in_small_batches(tmp_path: Path, columns: list[Any], gone: list[int]) -> None:
    file = tmp_path / "0.parquet"
    pq.write_table(pa.table({"c1": pa.array(range(20), pa.int32())}), file, row_group_size=10)
    projection = Projection(names={"id": "c1"}, constants={"place": "here", "new": None})
    schema, keep = pa.schema(columns), np.ones(10, dtype=bool)
    keep[gone] = False
    with pq.ParquetFile(file) as parquet:
        found = list(
            projection.batches(parquet, 1, schema, rows=4, keep=keep if len(gone) else None)
        )
    rows = [
        [row for row in part if row - 10 not in gone]
        for part in (range(10, 14), range(14, 18), range(18, 20))
    ]
    value = {"id": lambda row: row, "place": lambda _: "here", "new": lambda _: None}
    assert [one.to_pylist() for one in found] == [
        [{name: value[name](row) for name, _ in columns} for row in part] for part in rows if part
    ]
    assert all(one.schema == schema for one in found)

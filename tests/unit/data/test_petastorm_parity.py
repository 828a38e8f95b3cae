"""The same values as petastorm's reader gives, on the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from parquet_sets import load, one

petastorm = pytest.importorskip("petastorm", reason="petastorm needs pyarrow below 15")


def test_every_value_is_the_same(tmp_path: Path) -> None:
    rows = 500
    random = np.random.default_rng(3)
    ids = np.arange(rows)
    table = pa.table(
        {
            "id": ids,
            "int8": random.integers(-128, 128, rows).astype(np.int8),
            "int16": random.integers(-999, 999, rows).astype(np.int16),
            "int32": random.integers(-(2**31), 2**31, rows).astype(np.int32),
            "float32": random.standard_normal(rows).astype(np.float32),
            "float64": random.standard_normal(rows),
            "bool": random.integers(0, 2, rows).astype(bool),
            "text": [f"row {i}" for i in ids],
            "list": pa.array(list(random.standard_normal((rows, 5)).astype(np.float32))),
        }
    )
    manifest = one(tmp_path, table, 60)
    with load(tmp_path, manifest, batch_size=64, tail="uneven") as loader:
        batches = list(loader)
    order = np.argsort(torch.cat([batch["id"] for batch in batches]).numpy())

    from petastorm import make_batch_reader

    paths = [f"file://{path}" for path in sorted(tmp_path.glob("*.parquet"))]
    with make_batch_reader(paths, num_epochs=1, workers_count=1) as reader:
        theirs = list(reader)
    their_order = np.argsort(np.concatenate([group.id for group in theirs]))
    for name in table.column_names:
        expected = np.concatenate([getattr(group, name) for group in theirs])[their_order]
        if name == "text":
            found = np.array([value for batch in batches for value in batch[name]])[order]
        else:
            found = torch.cat([batch[name] for batch in batches]).numpy()[order]
            assert found.dtype == expected.dtype, name
        assert np.array_equal(found, expected), name

"""Rows that are longer than described are read, with as little memory as they leave, and told."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from parquet_sets import load, write_groups


def test_texts_that_are_longer_than_described_are_told_of_once(tmp_path: Path) -> None:
    texts = pa.table({"text": [f"{row} ".ljust(5_000, "x") for row in range(4_000)]})
    manifest = write_groups(tmp_path, texts, [[1_000] * 4])
    (column,) = manifest.columns
    assert column.decoded_bytes is not None
    short = dataclasses.replace(column, decoded_bytes=4_000, group_row_bytes=1, most_row_bytes=1)
    lying = dataclasses.replace(manifest, columns=(short,))
    with (
        pytest.warns(UserWarning, match="texts or lists are longer than described") as told,
        load(tmp_path, lying, batch_size=50, memory_budget_bytes=16 << 20) as loader,
    ):
        found = [text for _ in range(2) for batch in loader for text in batch["text"]]
    assert len({str(one.message) for one in told}) == 1, "Python shows it once"
    assert sorted(found) == sorted(texts["text"].to_pylist() * 2)
    with load(tmp_path, manifest, batch_size=50, memory_budget_bytes=32 << 20) as loader:
        assert sum(len(batch["text"]) for batch in loader) == 4_000


def test_rows_as_described_are_not_told_of_where_all_lanes_need_their_next_blocks(
    tmp_path: Path,
) -> None:
    noise = np.random.default_rng(0)
    images = pa.table({"image": [noise.bytes(28_000) for _ in range(1_200)]})
    manifest = dataclasses.replace(write_groups(tmp_path, images, [[200] * 6]), page_rows=16)
    with (
        warnings.catch_warnings(action="error"),
        load(tmp_path, manifest, batch_size=32, memory_budget_bytes=64 << 20) as loader,
    ):
        assert sum(len(batch["image"]) for batch in loader) == 1_184

"""Memory for gathered rows is used again; rows that were moved are copied in runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from parquet_sets import load, numbered, one

from sparkdl_runner.data.decode.columns import DenseColumn, Layout, Output
from sparkdl_runner.data.read.arena import Arena


def test_a_gather_takes_new_memory_only_for_more_rows() -> None:
    arena, group = SimpleNamespace(_scratch={}), SimpleNamespace(rows=np.zeros((9, 3), np.int32))
    first, fewer, more = (Arena._scratch_for(arena, group, count) for count in (5, 4, 6))
    assert [one.shape for one in (first, fewer, more)] == [(5, 3), (4, 3), (6, 3)]
    assert np.shares_memory(first, fewer)
    assert not np.shares_memory(first, more)
    assert more.dtype == np.int32


def test_moved_rows_are_collected_lane_by_lane_and_step_by_step() -> None:
    outputs = (
        Output(name="id", dtype=np.dtype(np.int64)),
        Output(name="pair", dtype=np.dtype(np.float32), shape=(2,)),
    )
    column = DenseColumn(name="c", outputs=outputs, decode=lambda _: (), has_nulls=False)
    arena = Arena(Layout(columns=(column,), features=None), pages=14, page_rows=4)
    random, ids, lanes = np.random.default_rng(1), [], []
    arena.give_back(random.permutation(arena.take_pages(14 * 4)))
    for first in (0, 100):  # Each lane has the end of a block of 13 rows and 5 rows of the next.
        lanes.append([])
        for begin, rows, part in ((first, 13, slice(6, 13)), (first + 50, 9, slice(0, 5))):
            pages, values = arena.take_pages(rows), np.arange(begin, begin + rows)
            pairs = np.stack([values, -values], axis=1).astype(np.float32)
            runs = arena.runs(pages, slice(0, rows))
            arena.write([(values, pairs)], [(runs, slice(0, rows))])
            order = random.permutation(rows)
            assert arena.shuffle(pages, order) is None
            ids.append(values[order][part])
            lanes[-1].append((pages, part))
    found = arena.interleave(lanes, 4, lambda name, shape, dtype: np.empty(shape, dtype))
    expected = np.stack([np.concatenate(ids[:2]), np.concatenate(ids[2:])])
    expected = expected.reshape(2, 4, 3).transpose(1, 0, 2).ravel()
    assert found["id"].tolist() == expected.tolist()
    assert found["pair"].tolist() == [[value, -value] for value in expected.tolist()]


def test_only_the_step_in_which_a_lane_ends_is_gathered_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, gathered, gather = one(tmp_path, numbered(1_000), 100), [], Arena.gather

    def counting(arena: Arena, index: Any, empty: Any) -> Any:
        gathered.append(len(index))
        return gather(arena, index, empty)

    monkeypatch.setattr(Arena, "gather", counting)
    with load(tmp_path, manifest, batch_size=48, tail="uneven", columns=["id"]) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 1_000
    assert gathered == [1_000 % 48]


@pytest.mark.parametrize("columns", [["id"], ["id", "vector"]])  # moved when shuffled, and not
def test_rows_that_are_not_shuffled_stay_where_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    manifest = one(tmp_path, numbered(1_000, width=64), 100)
    monkeypatch.delattr(Arena, "shuffle")
    with load(tmp_path, manifest, batch_size=50, shuffle=False, lanes=1, columns=columns) as loader:
        found = [value for batch in loader for value in batch["id"].tolist()]
    assert found == list(range(1_000))

"""How much is decoded: many rows at a time, and few in vain, whatever the plan asks for."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_sets import load, numbered, write_groups

from sparkdl_runner.data.read.memory_plan import MemoryPlan
from sparkdl_runner.data.read.reader import RowGroupReader

AT_A_TIME = 8
real_plan, real_stream = MemoryPlan.of, RowGroupReader.stream


def few_rows(*given: Any, **named: Any) -> MemoryPlan:
    """The plan, but with a few rows at a time, so that small tables are decoded in many steps."""

    plan = real_plan(*given, **named)
    return dataclasses.replace(plan, partial_rows=AT_A_TIME, whole_rows=AT_A_TIME)


class Decoded:
    """Counts the steps and rows of each stream."""

    def __init__(self) -> None:
        self.steps, self.rows, self.streams = 0, 0, 0
        self.by_group: Counter[int] = Counter()

    def stream(self, reader: RowGroupReader, group: int, *given: Any, **named: Any) -> Any:
        self.streams += 1
        for decoded in real_stream(reader, group, *given, **named):
            self.steps += 1
            self.rows += decoded.rows
            self.by_group[group] += decoded.rows
            yield decoded


def read(directory: Path, manifest: Any, skip: int = 0, **arguments: Any) -> Decoded:
    decoded = Decoded()

    def counted(reader: RowGroupReader, *given: Any, **named: Any) -> Any:
        return decoded.stream(reader, *given, **named)

    with (
        mock.patch.object(MemoryPlan, "of", few_rows),
        mock.patch.object(RowGroupReader, "stream", counted),
        load(directory, manifest, **arguments) as loader,
    ):
        if skip:
            state = loader.state_dict()
            state["step"] = min(skip, loader.steps_per_epoch)
            loader.load_state_dict(state)
        for _ in loader:
            pass
    return decoded


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(st.integers(1, 150), min_size=1, max_size=9),
    world=st.integers(1, 4),
    per_rank=st.integers(1, 8),
    blocks_bytes=st.sampled_from([2_000, 20_000, 200_000]),
    window=st.sampled_from([None, 1, 2, 4]),
    seed=st.integers(0, 5),
    skip=st.integers(0, 6),
    shuffle=st.booleans(),
)
def test_as_many_rows_are_decoded_at_a_time_whatever_the_first_or_the_last_one_is(
    groups: list[int],
    world: int,
    per_rank: int,
    blocks_bytes: int,
    window: int | None,
    seed: int,
    skip: int,
    shuffle: bool,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        manifest = write_groups(Path(name), numbered(sum(groups)), [groups])
        arguments: dict[str, Any] = {
            "batch_size": per_rank,
            "shard_count": world,
            "seed": seed,
            "shuffle": shuffle,
            "blocks_bytes": blocks_bytes,
            "tail": "pad",
        }
        if shuffle:
            arguments["window_row_groups"] = window
        for rank in range(world):
            found = read(Path(name), manifest, skip, cur_shard=rank, **arguments)
            assert found.steps <= found.rows / AT_A_TIME + found.streams


@pytest.mark.parametrize("seed", range(5))
def test_lanes_that_end_beside_the_end_of_a_row_group_read_none_in_vain(
    tmp_path: Path, seed: int
) -> None:
    """The eight lanes end some rows before or after a row group does."""
    groups = [312, 300, 300, 300, 305, 295, 300, 288]
    manifest = write_groups(tmp_path, numbered(sum(groups)), [[rows] for rows in groups])
    arguments = {"batch_size": 10, "tail": "uneven", "blocks_bytes": 20_000, "seed": seed}
    found = read(tmp_path, manifest, **arguments)
    assert found.rows < 1.15 * sum(groups)


@pytest.mark.parametrize("groups", [[2_400], [1_500, 900], [2_000, 300, 100]])
def test_lanes_of_a_rank_read_a_long_row_group_once(tmp_path: Path, groups: list[int]) -> None:
    manifest = write_groups(tmp_path, numbered(sum(groups)), [groups])
    arguments = {"batch_size": 16, "tail": "uneven", "blocks_bytes": 20_000}
    found = read(tmp_path, manifest, **arguments)
    assert found.rows < 1.3 * sum(groups)
    assert found.by_group[0] < 1.1 * groups[0]

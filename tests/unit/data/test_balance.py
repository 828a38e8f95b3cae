"""``balance=``: every rank's step gets about as much of a column whose rows differ in length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parquet_sets import load, one

from sparkdl_runner.data.errors import StateError
from sparkdl_runner.data.order.balance import balanced

pytestmark = pytest.mark.one_lane

ROWS, BATCH = 512, 64


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=80), st.integers(0, 40), st.integers(1, 16)
)
def test_a_balanced_block_has_every_row_once(
    lengths: list[int], position: int, lane_batch: int
) -> None:
    order = np.random.default_rng(0).permutation(len(lengths))
    found = balanced(order, np.array(lengths), position, lane_batch)
    assert sorted(found.tolist()) == list(range(len(lengths)))
    same = balanced(order, np.full(len(lengths), 7), position, lane_batch)
    assert sorted(same.tolist()) == list(range(len(lengths)))


def test_steps_that_share_a_block_with_others_get_their_share() -> None:
    lengths = np.arange(400)
    found = balanced(np.random.default_rng(0).permutation(400), lengths, 10, 40)
    step = (10 + np.arange(400)) // 40
    means = np.bincount(step, lengths[found]) / np.bincount(step)
    assert np.abs(means / lengths.mean() - 1).max() < 0.05


def texts() -> pa.Table:
    """Of 1 to 3,000 tokens, as many of each order of magnitude."""
    random = np.random.default_rng(0)
    lengths = np.exp(random.uniform(0, np.log(3000), ROWS)).astype(int)
    return pa.table(
        {
            "id": range(ROWS),
            "tokens": pa.array([[row] * length for row, length in enumerate(lengths)]),
            "text": ["x" * length for length in lengths],
            "words": [["x"] * length for length in lengths],
        }
    )


def ids_and_sizes(
    directory: Path, manifest: Any, ranks: int, **arguments: Any
) -> tuple[list[list[list[int]]], np.ndarray]:
    """By step: each rank's ids, and int64 ``[steps, ranks]``, how many tokens it has."""
    ids: list[list[list[int]]] = []
    sizes = []
    for rank in range(ranks):
        with load(
            directory,
            manifest,
            global_batch_size=BATCH,
            cur_shard=rank,
            shard_count=ranks,
            ragged=["tokens"],
            lanes=4,
            **arguments,
        ) as loader:
            batches = list(loader)
        ids.append([batch["id"].tolist() for batch in batches])
        sizes.append([len(batch["tokens"]) for batch in batches])
    return [list(step) for step in zip(*ids, strict=True)], np.array(sizes).T


@pytest.mark.parametrize("column", ["tokens", "text", "words"])
def test_ranks_get_about_as_many_tokens(tmp_path: Path, column: str) -> None:
    manifest = one(tmp_path, texts(), rows_per_group=64)
    _, before = ids_and_sizes(tmp_path, manifest, 2)
    ids, after = ids_and_sizes(tmp_path, manifest, 2, balance=column)
    assert sorted(row for step in ids for rank in step for row in rank) == list(range(ROWS))
    uneven = [(sizes.max(1) / sizes.mean(1)).mean() - 1 for sizes in (before, after)]
    assert uneven[1] < uneven[0] / 2
    assert after.sum(1).std() < before.sum(1).std() / 4


def test_all_world_sizes_see_the_same_global_batches(tmp_path: Path) -> None:
    manifest = one(tmp_path, texts(), rows_per_group=50)
    expected = None
    for ranks in (1, 4):
        ids, _ = ids_and_sizes(tmp_path, manifest, ranks, balance="tokens", num_epochs=2)
        joined = [[row for rank in step for row in rank] for step in ids]
        expected = expected or joined
        assert joined == expected
    assert expected is not None
    assert expected[: len(expected) // 2] != expected[len(expected) // 2 :]


def test_it_resumes_within_a_block_on_another_number_of_ranks(tmp_path: Path) -> None:
    manifest = one(tmp_path, texts(), rows_per_group=50)
    arguments: dict[str, Any] = {"global_batch_size": BATCH, "lanes": 4, "columns": ["id", "text"]}
    with load(tmp_path, manifest, balance="text", **arguments) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        rest = [batch["id"].tolist() for batch in batches]
    half = BATCH // 2
    for rank in range(2):
        with load(
            tmp_path, manifest, balance="text", cur_shard=rank, shard_count=2, **arguments
        ) as loader:
            loader.load_state_dict(state)
            found = [batch["id"].tolist() for batch in loader]
        assert found == [ids[rank * half : (rank + 1) * half] for ids in rest]
    with (
        load(tmp_path, manifest, **arguments) as loader,
        pytest.raises(StateError, match=r"balance='text', .* with balance='text'"),
    ):
        loader.load_state_dict(state)


def test_what_cannot_be_balanced_is_refused(tmp_path: Path) -> None:
    manifest = one(tmp_path, texts(), rows_per_group=50)
    for arguments, message in (
        ({"balance": "id"}, "balance names 'id'; expected .* length: text"),
        ({"balance": "tokens", "columns": ["id"]}, "expected .* there is none"),
        ({"balance": "text", "shuffle": False}, "shuffle=False keeps them in order"),
    ):
        with pytest.raises(ValueError, match=message):
            load(tmp_path, manifest, batch_size=4, **{"columns": ["id", "text"], **arguments})

"""The plan, as pure numbers."""

from __future__ import annotations

import itertools
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.data.order.lanes import choose_lanes
from sparkdl_runner.data.order.mixing import measure
from sparkdl_runner.data.order.permutation import permute_groups
from sparkdl_runner.data.order.plan import Order

groups = st.lists(st.integers(0, 40), min_size=1, max_size=50)


def order(rows: list[int], *, lanes: int, per_lane: int = 2, **fields: object) -> Order:
    return Order(
        group_rows=np.array(rows, dtype=np.int64),
        global_batch_size=lanes * per_lane,
        lanes=lanes,
        **{"block_rows": 7, "window_groups": 3, **fields},  # type: ignore[arg-type]
    )


def rows_of_lane(an_order: Order, epoch: int, lane: int) -> list[int]:
    """Global numbers of a lane's rows, in the order in which they come."""
    first_row = np.concatenate([[0], np.cumsum(an_order.group_rows)])
    result: list[int] = []
    for block in an_order.epoch(epoch).blocks(lane):
        assert block.position == len(result)
        rows = [
            int(first_row[group]) + start + offset
            for _, group, start, count, *_ in block.pieces
            for offset in range(count)
        ]
        assert len(rows) == block.rows
        permutation = an_order.block_order(epoch, lane, block.number, np.arange(block.rows))
        result += [rows[place] for place in permutation]
    return result


@given(rows=groups, lanes=st.integers(1, 12), seed=st.integers(0, 9), shuffle=st.booleans())
def test_every_row_is_in_one_lane_once(
    rows: list[int], lanes: int, seed: int, shuffle: bool
) -> None:
    an_order = order(rows, lanes=lanes, seed=seed, shuffle=shuffle)
    lane_rows = [rows_of_lane(an_order, 1, lane) for lane in range(lanes)]
    assert sorted(row for lane in lane_rows for row in lane) == list(range(sum(rows)))
    assert [len(lane) for lane in lane_rows] == an_order.lane_rows.tolist()
    assert max(map(len, lane_rows)) - min(map(len, lane_rows)) <= 1


@given(rows=groups, lanes=st.integers(1, 12), per_lane=st.integers(1, 9), seed=st.integers(0, 9))
def test_wrapped_every_lane_is_full_and_has_the_first_rows_again(
    rows: list[int], lanes: int, per_lane: int, seed: int
) -> None:
    an_order = order(rows, lanes=lanes, per_lane=per_lane, seed=seed, wrap=True)
    lane_rows = [rows_of_lane(an_order, 1, lane) for lane in range(lanes)]
    assert {len(lane) for lane in lane_rows} == {an_order.steps("wrap") * per_lane}
    times = np.bincount([row for lane in lane_rows for row in lane], minlength=sum(rows))
    assert len(times) == sum(rows)
    assert not len(times) or times.max() - times.min() <= 1


@given(rows=groups, lanes=st.integers(1, 5), per_lane=st.integers(1, 9))
def test_steps_follow_from_rows_alone(rows: list[int], lanes: int, per_lane: int) -> None:
    an_order = order(rows, lanes=lanes, per_lane=per_lane)
    batch = lanes * per_lane
    assert an_order.steps("drop") == sum(rows) // batch
    assert an_order.steps("pad") == an_order.steps("uneven") == -(-sum(rows) // batch)
    # The longest lane ends in the last step, and the shortest fills every step that is kept.
    assert -(-an_order.lane_rows.max() // per_lane) == an_order.steps("pad")
    assert an_order.lane_rows.min() // per_lane == an_order.steps("drop")


def test_without_shuffle_a_single_lane_is_the_data_set_in_order() -> None:
    assert rows_of_lane(order([3, 0, 9, 1], lanes=1, window_groups=1, shuffle=False), 4, 0) == list(
        range(13)
    )


def test_a_windows_short_row_groups_go_to_different_blocks() -> None:
    an_order = order([40, 1, 1, 1, 1, 1], lanes=1, window_groups=6, shuffle=False)
    blocks = list(an_order.epoch(0).blocks(0))
    block_of = {
        piece.group: block.number for block in blocks for piece in block.pieces if piece.group
    }
    assert len(set(block_of.values())) == 5


def test_every_epoch_and_seed_has_an_order_of_its_own() -> None:
    rows = [10] * 20
    orders = {
        tuple(rows_of_lane(order(rows, lanes=2, seed=seed), epoch, 0))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_the_order_is_the_same_with_every_version_of_numpy() -> None:
    an_order = order([4, 4, 4, 4, 4, 4], lanes=2, seed=7)
    assert permute_groups(an_order.group_rows, 2, 3, 7, 3).tolist() == [3, 0, 4, 1, 5, 2]
    assert rows_of_lane(an_order, 3, 1)[:6] == [8, 9, 5, 21, 4, 20]


@pytest.mark.parametrize(
    ("version", "counts"),
    [
        (2, [[2, 2, 3], [2, 2, 2], [2, 3, 3], [2, 2, 2]]),
        (3, [[2, 2, 2], [2, 2, 3], [2, 2, 2], [2, 3, 3]]),
    ],
)
def test_blocks_are_cut_as_the_version_that_began_them_did(
    version: int, counts: list[list[int]]
) -> None:
    an_order = order([10, 9, 8], lanes=1, version=version)
    blocks = an_order.epoch(0).blocks(0)
    assert [[piece.rows for piece in block.pieces] for block in blocks] == counts


@given(
    groups_count=st.integers(0, 60),
    lanes=st.integers(1, 9),
    window=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_row_groups_are_permuted(groups_count: int, lanes: int, window: int, seed: int) -> None:
    rows = np.arange(groups_count) % 3  # every third one is empty
    permuted = permute_groups(rows, lanes, window, seed, 0)
    assert sorted(permuted.tolist()) == np.flatnonzero(rows).tolist()


@pytest.mark.parametrize(
    ("global_batch_size", "world_size", "most", "lanes"),
    [
        (1024, 1, 8, 8),
        (1024, 4, 8, 8),
        (1024, 4, 5, 4),
        (1024, 64, 8, 64),
        (100, 1, 8, 4),
        (7, 7, 8, 7),
        (96, 3, 8, 24),
        (9, 1, 8, 1),
    ],
)
def test_default_lanes(global_batch_size: int, world_size: int, most: int, lanes: int) -> None:
    found = choose_lanes(None, global_batch_size, world_size, most)
    assert found == lanes


def test_lanes_that_do_not_divide_the_global_batch_are_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"lanes=5 .* 12 rows.* fit: 1, 2, 3, 4, 6, 12\."):
        Order(group_rows=np.ones(3, np.int64), global_batch_size=12, lanes=5, block_rows=1)


def spearman(order_of_rows: np.ndarray) -> float:
    """Rank correlation of place in the output and place in the input."""
    return float(np.corrcoef(order_of_rows, np.arange(len(order_of_rows)))[0, 1])


def stream(an_order: Order, epoch: int) -> np.ndarray:
    """Global numbers of all rows in the order of the steps."""
    lanes = [rows_of_lane(an_order, epoch, lane) for lane in range(an_order.lanes)]
    steps, size = an_order.steps("drop"), an_order.lane_batch
    return np.array(
        [
            row
            for step in range(steps)
            for lane in lanes
            for row in lane[step * size : (step + 1) * size]
        ]
    )


@pytest.mark.parametrize("window_groups", [1, 20])
def test_sorted_data_is_mixed_nearly_as_well_as_by_a_full_shuffle(window_groups: int) -> None:
    """160 row groups, of which one of each lane is in use at a time, or all of a lane's."""
    an_order = order([200] * 160, lanes=8, per_lane=16, block_rows=200, window_groups=window_groups)
    full = [abs(spearman(np.random.default_rng(s).permutation(32_000))) for s in range(5)]
    found = [abs(spearman(stream(an_order, epoch))) for epoch in range(5)]
    assert max(found) < np.mean(full) + 0.02, found


@pytest.mark.parametrize("lanes", [1, 2, 8])
@pytest.mark.parametrize("group_count", [97, 250])
def test_sorted_data_is_mixed_with_few_lanes_and_row_groups_too(
    lanes: int, group_count: int
) -> None:
    """What a small budget leaves: blocks of one row group, and of few of them at a time."""
    an_order = order(
        [100] * group_count, lanes=lanes, per_lane=16 // lanes, block_rows=100, window_groups=1
    )
    found = [abs(spearman(stream(an_order, epoch))) for epoch in range(8)]
    # A shuffle of the row groups alone would have 1 / sqrt(row groups).
    assert np.mean(found) < 2.5 / group_count, found


def test_a_plan_of_100_000_row_groups_for_1_024_ranks_is_small_and_little_work() -> None:
    rows = np.random.default_rng(0).integers(1_000, 50_000, 100_000)

    def blocks_of_some_ranks() -> list[int]:
        an_order = Order(
            group_rows=rows, global_batch_size=32 * 1024, lanes=1024, block_rows=50_000
        )
        plan = an_order.epoch(0)
        return [len(list(plan.blocks(rank))) for rank in range(0, 1024, 128)]

    calls = itertools.count()
    tracemalloc.start()
    sys.setprofile(lambda _, event, __: next(calls) if event in ("call", "c_call") else None)
    try:
        assert all(blocks_of_some_ranks())
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert next(calls) < len(rows), "of Python, less than one call for each row group"
    assert peak < 50 << 20


@pytest.mark.parametrize("window_groups", [1, 4, 60])
@pytest.mark.parametrize("world_size", [1, 8])
def test_what_a_plan_says_of_its_mixing_is_what_batches_have(
    window_groups: int, world_size: int
) -> None:
    """60 row groups a rank of a table that is sorted by ten labels."""
    an_order = order(
        [100] * 480, lanes=8, per_lane=16, block_rows=200, window_groups=window_groups, seed=1
    )
    figures = measure(an_order, world_size)
    labels = stream(an_order, 0).reshape(-1, world_size, 128 // world_size) * 10 // 48_000
    found = np.mean([[len(set(batch)) for batch in step] for step in labels.tolist()])
    assert figures.batch_labels == pytest.approx(found, rel=0.15)
    shares = np.stack([np.bincount(step.ravel(), minlength=10) / 128 for step in labels])
    deviation = np.abs(shares - 0.1).sum(axis=1).mean() / 2
    assert figures.global_deviation == pytest.approx(deviation, rel=0.15)
    if window_groups == 60:
        assert found > 0.9 * figures.shuffled_batch_labels
        assert deviation < 1.2 * figures.shuffled_global_deviation

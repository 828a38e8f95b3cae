"""The memory that a budget sets aside is enough for whatever blocks a chunk touches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sparkdl_runner.data.order.plan import Order
from sparkdl_runner.data.read.budget import Budget, Sizes, page_rows_for

ROW_BYTES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """Rows of ``ROW_BYTES``, of which ``read_bytes`` are read: with 1, many rows go into a page."""

    group_rows: list[int]
    budget_bytes: int
    read_bytes: int = 1
    lanes: int
    lane_batch: int = 1
    threads: int = 1
    prefetch_batches: int
    seed: int = 0
    shuffle: bool = True

    def spare_pages(self) -> int:
        """Pages that no chunk of the first epoch needs."""
        rows = np.array(self.group_rows, dtype=np.int64)
        budget = Budget(
            memory_budget_bytes=self.budget_bytes,
            row_bytes=ROW_BYTES,
            open_group_bytes=int(rows.max()) * ROW_BYTES // 4,
            mean_group_rows=max(1, int(rows.mean())),
        )
        order = Order(
            group_rows=rows,
            global_batch_size=self.lanes * self.lane_batch,
            lanes=self.lanes,
            block_rows=budget.block_rows,
            window_groups=budget.window_groups if self.shuffle else 1,
            seed=self.seed,
            shuffle=self.shuffle,
        )
        sizes = Sizes.of(
            budget,
            order,
            lanes=self.lanes,
            row_bytes=self.read_bytes,
            batch_row_bytes=self.read_bytes,
            threads=self.threads,
            prefetch_batches=self.prefetch_batches,
        )
        plan = order.epoch(0)
        blocks = [block for lane in range(self.lanes) for block in plan.blocks(lane)]
        steps = order.steps("pad")
        most = 0
        for step in range(0, steps, sizes.chunk_steps):
            begin = step * self.lane_batch
            end = min(step + sizes.chunk_steps, steps) * self.lane_batch
            touched = [one for one in blocks if one.position < end]
            touched = [one for one in touched if one.position + one.rows > begin]
            most = max(most, sum(-(-one.rows // sizes.page_rows) for one in touched))
        return sizes.pages - most


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split()]


TIGHT = [
    # Found by a search among many thousands for readings that leave the least to spare.
    Reading(
        group_rows=numbers("8 2 3 5 8 4 6 5 1 2 5 8 4 5 4 7 9 9 4 9 4 6 5 9 10 3 7 10 2 5 10 7"),
        budget_bytes=160_000,
        lanes=1,
        seed=2,
        shuffle=False,
        prefetch_batches=36,
    ),
    Reading(
        group_rows=numbers(
            "2 6 3 8 7 2 3 5 1 1 7 7 6 6 5 4 8 4 6 6 3 5 2 1 7 1 4 3 3 1 1 5 2 8 4 5 8 3 2 "
            "8 6 3 1 1 3 3 2 2 1 5 2 5 3 4 6"
        ),
        budget_bytes=32_000,
        lanes=2,
        prefetch_batches=30,
    ),
    Reading(
        group_rows=numbers(
            "2 7 2 7 13 14 4 17 16 5 6 9 2 12 3 3 8 2 7 5 13 1 15 17 7 3 15 12 13 17 13 15 "
            "2 11 9 14 15 15 9 6 12 16 10 10 12"
        ),
        budget_bytes=68_000,
        lanes=2,
        threads=2,
        seed=2,
        shuffle=False,
        prefetch_batches=33,
    ),
    # Blocks of 149 rows follow one another where 100 are usual, and a page has 4.
    Reading(
        group_rows=[*[49, 100] * 3, 1625],
        budget_bytes=1_626_000,
        read_bytes=ROW_BYTES,
        lanes=1,
        shuffle=False,
        prefetch_batches=4,
    ),
]


def test_no_chunk_needs_more_pages_than_there_are() -> None:
    dice = np.random.default_rng(0)
    readings = list(TIGHT)
    for _ in range(60):
        largest = int(dice.integers(1, 20))
        readings.append(
            Reading(
                group_rows=dice.integers(1, largest + 1, int(dice.integers(1, 60))).tolist(),
                budget_bytes=4 * largest * ROW_BYTES * int(dice.integers(1, 6)),
                lanes=int(dice.integers(1, 9)),
                lane_batch=int(dice.integers(1, 5)),
                threads=int(dice.integers(1, 5)),
                prefetch_batches=int(dice.integers(1, 40)),
                seed=int(dice.integers(0, 5)),
                shuffle=bool(dice.random() < 0.7),
            )
        )
    short = [reading for reading in readings if reading.spare_pages() < 0]
    assert not short


def test_pages_have_a_power_of_two_of_rows_and_no_more_than_16384() -> None:
    assert [page_rows_for(8, size) for size in (1, 64, 127, 128, 1 << 17, 1 << 30)] == [
        1,
        8,
        8,
        16,
        1 << 14,
        1 << 14,
    ]


def test_pages_and_what_decodes_and_batches_ahead_stay_within_the_budget() -> None:
    row_bytes, memory_bytes = 1000, 512 << 20
    budget = Budget(
        memory_budget_bytes=memory_bytes,
        row_bytes=row_bytes,
        open_group_bytes=1 << 20,
        mean_group_rows=100_000,
    )
    order = Order(
        group_rows=np.full(20, 100_000),
        global_batch_size=64,
        lanes=1,
        block_rows=budget.block_rows,
        window_groups=budget.window_groups,
    )
    # More threads than lanes would read further ahead than there is memory for.
    threads = budget.threads(16)
    sizes = Sizes.of(
        budget,
        order,
        lanes=1,
        row_bytes=row_bytes,
        batch_row_bytes=row_bytes,
        threads=threads,
        prefetch_batches=None,
    )
    pages = sizes.page_limit * sizes.page_rows * row_bytes
    ahead = 4 * sizes.chunk_steps * order.global_batch_size * row_bytes
    side_by_side = budget.most_lanes * budget.window_groups * budget.open_group_bytes
    assert threads == 8
    assert pages + ahead + threads * (16 << 20) + side_by_side <= memory_bytes
    # Blocks in use and the next ones, and half of the budget for row groups that are partly read:
    # a window of each lane, and half of the next one.
    assert pages > 2 * order.block_rows * row_bytes
    assert 0.45 * memory_bytes < 1.5 * side_by_side <= 0.5 * memory_bytes


@pytest.mark.parametrize("mebibytes", [64, 128, 512])
@pytest.mark.parametrize("row_bytes", [8, 16, 256, 30_000])
@pytest.mark.parametrize("group_bytes", [1 << 20, 5 << 20, 40 << 20])
def test_what_lanes_read_leaves_room_for_threads_and_allocators(
    mebibytes: int, row_bytes: int, group_bytes: int
) -> None:
    budget = Budget(
        memory_budget_bytes=mebibytes << 20,
        row_bytes=row_bytes,
        open_group_bytes=group_bytes,
        mean_group_rows=max(1, group_bytes // row_bytes),
    )
    blocks = 2 * budget.block_rows * (row_bytes + 16)
    taken = budget.most_lanes * (blocks + group_bytes)
    assert budget.most_lanes == 1 or taken <= (mebibytes - 16) << 20


def spare_bytes(groups: int, lanes: int, most_bytes: int | None = None) -> int:
    """The spare bytes of 200 MB. A row group has 1,000 rows, and takes 1 MB while it is open."""
    budget = Budget(
        memory_budget_bytes=200_000_000,
        row_bytes=ROW_BYTES,
        open_group_bytes=1_000_000,
        mean_group_rows=1000,
        most_bytes=most_bytes,
    )
    order = Order(
        group_rows=np.full(groups, 1000),
        global_batch_size=8,
        lanes=8,
        block_rows=budget.block_rows,
        window_groups=budget.window_groups,
        seed=0,
        shuffle=True,
    )
    return budget.spare_bytes(order, lanes)


def test_few_row_groups_leave_memory_for_remote_ones() -> None:
    most = spare_bytes(8, 0)
    assert 40_000_000 < most < 50_000_000
    assert spare_bytes(8, 4) == most - 2_000_000
    assert spare_bytes(24, 8) == most - 12_000_000
    assert spare_bytes(80_000, 8) < most // 2
    assert spare_bytes(8, 4, most_bytes=150_000_000) == most - 27_000_000
    assert spare_bytes(8, 4, most_bytes=20_000_000) == 0


def pages_ahead(open_group_bytes: int) -> tuple[int, int]:
    """The pages of the blocks in use, and those up to which blocks are loaded ahead."""
    budget = Budget(
        memory_budget_bytes=128 << 20,
        row_bytes=256,
        open_group_bytes=open_group_bytes,
        mean_group_rows=100_000,
    )
    order = Order(
        group_rows=np.full(64, 100_000),
        global_batch_size=1024,
        lanes=8,
        block_rows=6000,
        window_groups=4,
    )
    sizes = Sizes.of(
        budget,
        order,
        lanes=8,
        row_bytes=256,
        batch_row_bytes=256,
        threads=2,
        prefetch_batches=None,
    )
    return 8 * (order.block_rows // sizes.page_rows + 2), sizes.page_limit


def test_blocks_are_loaded_ahead_beside_the_row_groups_that_are_partly_read() -> None:
    in_use, limit = pages_ahead(100_000)
    assert limit == 2 * in_use
    in_use, limit = pages_ahead(1_200_000)
    assert limit == in_use

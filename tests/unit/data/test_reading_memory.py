"""What a memory plan sets aside is enough for whatever blocks a chunk touches, and no more."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_sets import one

from sparkdl_runner.data.batches.columns.plan import plan_columns
from sparkdl_runner.data.batches.expectations import check_memory
from sparkdl_runner.data.dataset.manifest import ColumnInfo, Manifest
from sparkdl_runner.data.decode.columns import ColumnOptions
from sparkdl_runner.data.order.defaults import DefaultOrder
from sparkdl_runner.data.order.mixing import measure
from sparkdl_runner.data.order.plan import Order
from sparkdl_runner.data.read.costs import DataCosts, default_order
from sparkdl_runner.data.read.memory_plan import MemoryLimit, MemoryPlan, page_rows_for

ROW_BYTES = 1000
MIB = 1 << 20


def limit(size_bytes: int) -> MemoryLimit:
    return MemoryLimit(size_bytes=size_bytes, rank_bytes=1 << 40, is_given=True)


def costs(row_bytes: int, group_rows: Any, **more: Any) -> DataCosts:
    rows = np.asarray(group_rows)
    known = {
        "row_bytes": row_bytes,
        "batch_row_bytes": row_bytes,
        "widest_bytes": row_bytes,
        "open_group_bytes": 1 << 20,
        "mean_group_rows": max(1, int(rows.mean())),
        "groups": len(rows),
        "is_local": True,
    }
    return DataCosts(**(known | more))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """Rows of ``ROW_BYTES``, of which ``read_bytes`` are read: with 1, many rows go into a page."""

    group_rows: list[int]
    budget_bytes: int
    block_rows: int = 5
    window_groups: int = 2
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
        order = Order(
            group_rows=rows,
            global_batch_size=self.lanes * self.lane_batch,
            lanes=self.lanes,
            block_rows=self.block_rows,
            window_groups=self.window_groups if self.shuffle else 1,
            seed=self.seed,
            shuffle=self.shuffle,
        )
        plan = MemoryPlan.of(
            limit(self.budget_bytes),
            costs(self.read_bytes, rows),
            order,
            lanes=self.lanes,
            most_threads=self.threads,
            prefetch_batches=self.prefetch_batches,
        )
        epoch = order.epoch(0)
        blocks = [block for lane in range(self.lanes) for block in epoch.blocks(lane)]
        steps = order.steps("pad")
        most = 0
        for step in range(0, steps, plan.chunk_steps):
            begin = step * self.lane_batch
            end = min(step + plan.chunk_steps, steps) * self.lane_batch
            touched = [one for one in blocks if one.position < end]
            touched = [one for one in touched if one.position + one.rows > begin]
            most = max(most, sum(-(-one.rows // plan.page_rows) for one in touched))
        return plan.pages - most


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
        block_rows=100,
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
                block_rows=int(dice.integers(1, 30)),
                window_groups=int(dice.integers(1, 9)),
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


def order_of(rows: Any, **fields: Any) -> Order:
    known = {"global_batch_size": 64, "lanes": 8, "block_rows": 4_000, "window_groups": 4}
    return Order(group_rows=np.asarray(rows, dtype=np.int64), **(known | fields))


@pytest.mark.parametrize("mebibytes", [64, 128, 512])
@pytest.mark.parametrize("row_bytes", [8, 256, 30_000])
@pytest.mark.parametrize("open_bytes", [100_000, MIB])
def test_all_parts_together_stay_within_the_limit(
    mebibytes: int, row_bytes: int, open_bytes: int
) -> None:
    """Where the order fits; and most of it is used."""
    rows = np.full(64, 16 * MIB // row_bytes)
    data = costs(row_bytes, rows, open_group_bytes=open_bytes)
    order = order_of(rows, block_rows=max(1, MIB // (row_bytes + 16)), window_groups=2)
    plan = MemoryPlan.of(limit(mebibytes << 20), data, order, lanes=8, most_threads=4)
    blocks = plan.page_limit * plan.page_rows * (row_bytes + 16)
    decoded = 2 * data.open_groups(order, 8) * (plan.partial_rows * row_bytes - (64 << 10))
    ahead = 4 * plan.chunk_steps * 64 * row_bytes
    decoding = plan.threads * plan.whole_rows * row_bytes
    fixed = (16 << 20) + (mebibytes << 20) // 24 + data.open_bytes(order, 8) + plan.remote_bytes
    assert blocks + max(0, decoded) + ahead + decoding + fixed <= 1.1 * (mebibytes << 20)
    assert blocks >= data.block_bytes(order, 8) // 2


def test_no_more_is_read_ahead_than_the_open_row_groups_have() -> None:
    """New memory costs more time than it saves: twice their rows, and what blocks leave empty."""
    rows = np.full(64, 5_000)
    data = costs(16, rows, open_group_bytes=100_000)
    order = order_of(rows, lanes=1, window_groups=16)
    plan = MemoryPlan.of(limit(512 * MIB), data, order, lanes=1, most_threads=2)
    assert data.partly_read(order, 1) == 24
    assert 2 * 24 * 5_000 < plan.page_limit * plan.page_rows <= 5 * 24 * 5_000 // 2
    large = np.full(64, 50_000_000)
    data = costs(16, large, open_group_bytes=100_000)
    order = order_of(large, lanes=1, window_groups=16)
    plan = MemoryPlan.of(limit(512 * MIB), data, order, lanes=1, most_threads=2)
    assert 24 * MIB < plan.page_limit * plan.page_rows * 16 <= 5 * 24 * (MIB // 2) // 2


def test_lanes_open_the_row_groups_of_their_windows_and_of_the_next_ones() -> None:
    many = np.full(800, 10_000)
    data = costs(256, many)
    assert data.open_groups(order_of(many, window_groups=4), 8) == 8 * 6
    assert data.open_groups(order_of(many, window_groups=4), 2) == 2 * 6
    few = np.full(16, 10_000)
    assert costs(256, few).open_groups(order_of(few, window_groups=4), 8) == 16 + 8 - 1
    one = np.array([800_000])
    assert costs(256, one).open_groups(order_of(one, window_groups=4), 8) == 8
    small = np.full(8_000, 100)  # A block takes row groups whole, one after the other.
    assert costs(256, small).open_groups(order_of(small, window_groups=40), 8) == 8


@pytest.mark.parametrize(
    ("window", "lanes", "sentence"),
    [
        (4, 8, r"about 6\d,.* for 48 row groups .*Give that much, or window_row_groups=3\.$"),
        (
            1,
            8,
            r"for 12 row groups .* for two batches of 64 rows\. .*or fewer lanes than 8\.$",
        ),
        (1, 1, r"Give that much, or smaller row groups\.$"),
    ],
)
def test_an_order_that_does_not_fit_is_refused_with_both_figures(
    window: int, lanes: int, sentence: str
) -> None:
    rows = np.full(800, 10_000)
    data = costs(256, rows)
    order = order_of(rows, window_groups=window, lanes=lanes)
    needed = data.least_bytes(order, lanes)
    check_memory(limit(needed), data, order, lanes)
    with pytest.raises(ValueError, match=f"={needed - 1:,} is too little.*{sentence}"):
        check_memory(limit(needed - 1), data, order, lanes)


def manifest_of(groups: int, rows: int, **info: Any) -> Manifest:
    import base64

    import pyarrow as pa

    from sparkdl_runner.data.dataset.files import FileInfo
    from sparkdl_runner.data.dataset.row_groups import RowGroups

    schema = pa.schema([("text", pa.string())])
    known = {"name": "text", "type": "string", "null_count": 0, "size_bytes": groups * rows * 10}
    return Manifest(
        files=(
            FileInfo(path="a", size_bytes=1, rows=rows, footer_crc32=0, modified_ns=0, crc32=0),
        ),
        row_groups=RowGroups.of([groups], [rows] * groups, [rows * 10] * groups),
        schema_base64=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        columns=(ColumnInfo(**(known | info)),),
    )


def test_the_default_order_follows_from_decoded_sizes() -> None:
    """A passage that many rows share takes little in the file, and its size in each row."""
    guessed = default_order(manifest_of(8, 50_000))
    known = default_order(manifest_of(8, 50_000, decoded_bytes=400_000 * 2_000))
    assert guessed.block_rows > 20_000
    assert 400 < known.block_rows < 600
    uneven = manifest_of(8, 50_000, decoded_bytes=400_000 * 2_000, group_row_bytes=16_000)
    assert 50 < default_order(uneven).block_rows < 70


def test_all_row_groups_mix_by_default_where_all_can_be_open() -> None:
    def open_groups(groups: int) -> int:
        order = DefaultOrder.of(np.full(groups, 15_000), row_bytes=40, open_group_bytes=1_100_000)
        return order.most_lanes * order.window_groups

    assert open_groups(64) == 8 * 13
    assert open_groups(80) == 40


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(6_000, 12_000), min_size=40, max_size=64), seed=st.integers(0, 1000)
)
def test_uneven_row_groups_mix_by_default_like_a_permutation(rows: list[int], seed: int) -> None:
    default = DefaultOrder.of(np.array(rows), row_bytes=40, open_group_bytes=1_100_000)
    order = Order(
        group_rows=np.array(rows),
        global_batch_size=512,
        lanes=8,
        block_rows=default.block_rows,
        window_groups=default.window_groups,
        seed=seed,
    )
    figures = measure(order, world_size=8)
    assert figures.global_deviation < 1.6 * figures.shuffled_global_deviation


def test_a_row_that_is_larger_than_the_limit_is_refused_by_name() -> None:
    rows = np.full(8, 100)
    order = order_of(rows)
    data = costs(256, rows, open_group_bytes=1_000, largest_row=(70 * MIB, "text"))
    with pytest.raises(ValueError, match="'text' has a row that takes 73,400,320 bytes once"):
        check_memory(limit(64 * MIB), data, order, 8)
    check_memory(limit(80 * MIB), data, order, 8)


@pytest.mark.parametrize("options", [{"pad": "longest"}, {"pack": {"tokens": 4096}}])
def test_rows_that_are_collated_are_there_twice_as_kept_and_as_arrays(tmp_path, options):
    rows = pa.table({"tokens": [list(range(100 * (n % 2))) for n in range(30)]})
    manifest = one(tmp_path, rows)
    kept = plan_columns(manifest, ColumnOptions(ragged=("tokens",)))
    collated = plan_columns(manifest, ColumnOptions(**options))
    assert collated.row_bytes == kept.row_bytes == kept.batch_row_bytes
    assert collated.batch_row_bytes == 2 * collated.row_bytes

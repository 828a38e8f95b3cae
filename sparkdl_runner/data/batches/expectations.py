"""Warns, before anything is read, if steps, memory or shuffling will not be as one expects."""

from __future__ import annotations

import warnings

from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode.columns import Layout
from sparkdl_runner.data.order.plan import Order, Tail
from sparkdl_runner.data.read.budget import DEFAULT_BYTES, Budget

# If a table is sorted by 10 labels, a batch from so many row groups has 9.8 of them on average.
ENOUGH_ROW_GROUPS = 32
# What each row in memory takes besides its values, for its place in the order.
PLACE_BYTES = 16
# What docs/data.md promises.
MOST_OF_BUDGET = 1.3


def warn(
    manifest: Manifest,
    layout: Layout,
    order: Order,
    budget: Budget,
    tail: Tail,
    rank: int,
    world_size: int,
) -> None:
    """Warns the caller of the loader's constructor, on rank 0 alone."""
    if rank != 0:
        return
    lanes = order.lanes // world_size
    sentences = [
        _no_step(order, tail),
        _many_lanes(budget, lanes),
        _large_row_groups(budget),
        _narrow_rows(order, budget, lanes, world_size),
        _sorted(manifest, layout, order, lanes),
    ]
    for sentence in sentences:
        if sentence is not None:
            warnings.warn(sentence, stacklevel=3)


def _no_step(order: Order, tail: Tail) -> str | None:
    if tail != "drop" or not 0 < order.rows < order.global_batch_size:
        return None
    return (
        f"The data set's {order.rows} rows do not fill one global batch of "
        f"{order.global_batch_size}, so there will be no step. Take smaller batches, or "
        "tail='pad', 'uneven' or 'wrap'."
    )


def _many_lanes(budget: Budget, lanes: int) -> str | None:
    if lanes <= budget.most_lanes:
        return None
    return (
        f"Each rank reads {lanes} lanes side by side, and the memory budget is for "
        f"{budget.most_lanes}: about {budget.bytes_for(lanes):,} bytes will be used. Give fewer "
        "lanes, or a larger memory_budget_bytes."
    )


def _large_row_groups(budget: Budget) -> str | None:
    # Row groups of the default size need about the default budget, and some a little more.
    if budget.is_given or budget.memory_budget_bytes <= 2 * DEFAULT_BYTES:
        return None
    return (
        f"The largest row group takes {budget.group_bytes:,} bytes in memory, so a rank may use "
        f"{budget.memory_budget_bytes:,} for its data, and not {DEFAULT_BYTES:,} as usual. Convert "
        "with a smaller parquet_row_group_size_bytes, or give memory_budget_bytes, which mixes "
        f"fewer rows: from {budget.least_bytes:,} on."
    )


def _narrow_rows(order: Order, budget: Budget, lanes: int, world_size: int) -> str | None:
    # Rows of the blocks in use and of the next ones.
    held = min(order.rows // world_size, 2 * lanes * order.block_rows)
    expected = budget.bytes_for(lanes)
    taken = expected + PLACE_BYTES * held
    if taken <= MOST_OF_BUDGET * expected:
        return None
    return (
        f"A row takes {budget.row_bytes} bytes, and {PLACE_BYTES} more for its place in the order: "
        f"about {taken:,} bytes will be used, and not {expected:,}. Where that is too much, give a "
        "smaller memory_budget_bytes."
    )


def _sorted(manifest: Manifest, layout: Layout, order: Order, lanes: int) -> str | None:
    names = [name for name in layout.names if manifest.column(name).is_clustered]
    if not names or not order.shuffle:
        return None
    groups = len(manifest.row_groups)
    together = round(lanes * max(1.0, order.block_rows * groups / order.rows))
    if together >= min(ENOUGH_ROW_GROUPS, groups):
        return None
    return (
        f"The data set is sorted by {names[0]!r}: most row groups hold one value of it. A rank "
        f"mixes about {together} of its {groups} row groups at a time, so a batch holds few of the "
        "values. Shuffle before converting (df.orderBy(F.rand())), or convert with a smaller "
        "parquet_row_group_size_bytes, or give a larger memory_budget_bytes."
    )

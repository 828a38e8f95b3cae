"""Warns, before anything is read, if steps, memory or shuffling will not be as one expects."""

from __future__ import annotations

import warnings

from sparkdl_runner.data.batches.mixing import Mixing
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode.columns import Layout
from sparkdl_runner.data.order.plan import Order, Tail
from sparkdl_runner.data.read.budget import Budget


def warn(
    manifest: Manifest,
    layout: Layout,
    order: Order,
    budget: Budget,
    tail: Tail,
    rank: int,
    world_size: int,
) -> None:
    """Warns the caller of the loader's constructor, by way of ``SharedOrder``, on rank 0 alone."""
    if rank != 0:
        return
    lanes = order.lanes // world_size
    sentences = [
        _no_step(order, tail),
        _many_lanes(budget, lanes),
        _little_memory(order, budget, lanes),
        _long_pages(order, budget, lanes),
        _sorted(manifest, layout, order, world_size),
    ]
    for sentence in sentences:
        if sentence is not None:
            warnings.warn(sentence, stacklevel=5)


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


def check_memory(order: Order, budget: Budget, world_size: int, rank_bytes: int) -> None:
    """Raises a ValueError if a rank, which may have so much memory, cannot read its lanes."""
    needed = budget.needed_bytes(order, order.lanes // world_size)
    if budget.most_bytes is not None and needed > rank_bytes:
        raise ValueError(
            f"a rank may have {rank_bytes:,} bytes of memory here, and reading this data set takes "
            f"about {needed:,}. Give memory_budget_bytes={budget.most_bytes:,} on every rank, which"
            " mixes fewer row groups, or convert with a smaller parquet_row_group_size_bytes."
        )


def _little_memory(order: Order, budget: Budget, lanes: int) -> str | None:
    needed = budget.needed_bytes(order, lanes)
    if budget.most_bytes is None or needed <= budget.most_bytes:
        return None
    return (
        f"Reading this data set takes about {needed:,} bytes in a rank, and a quarter of the memory"
        f" that a rank may have here is {budget.most_bytes:,}. If ranks run out of memory, give "
        f"memory_budget_bytes={budget.most_bytes:,} on every rank, which mixes fewer row groups."
    )


def _long_pages(order: Order, budget: Budget, lanes: int) -> str | None:
    """A warning if the caller's budget is exceeded by the pages of long values."""
    # While a lane goes over from one row group to the next, both are open.
    open_groups = min(2, int((order.group_rows > 0).sum()))
    needed = lanes * open_groups * budget.open_group_bytes
    if budget.most_bytes is not None or needed <= budget.memory_budget_bytes:
        return None
    return (
        f"memory_budget_bytes={budget.memory_budget_bytes:,} is too little for this data set: a row"
        f" group takes up to {budget.open_group_bytes:,} bytes while it is read page by page, and a"
        f" rank reads {lanes * open_groups} side by side, so about {needed:,} bytes will be used. "
        "Give that much, or convert with a smaller parquet_row_group_size_bytes."
    )


def _sorted(manifest: Manifest, layout: Layout, order: Order, world_size: int) -> str | None:
    names = [name for name in layout.names if manifest.column(name).is_clustered]
    if not names or not order.shuffle:
        return None
    mixing = Mixing.of(manifest, order, world_size)
    if mixing.is_good:
        return None
    return f"The data set is sorted by {names[0]!r}: most row groups hold one value of it. {mixing}"

"""Says, before anything is read, if steps, memory or shuffling will not be as one expects."""

from __future__ import annotations

import warnings
from dataclasses import replace

from sparkdl_runner.data.batches.mixing import Mixing
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode.columns import Layout
from sparkdl_runner.data.order.plan import Order, Tail
from sparkdl_runner.data.read.costs import DataCosts
from sparkdl_runner.data.read.memory_plan import MemoryLimit


def warn(
    manifest: Manifest, layout: Layout, order: Order, tail: Tail, rank: int, world_size: int
) -> None:
    """Warns the caller of the loader's constructor, by way of ``SharedOrder``, on rank 0 alone."""
    if rank != 0:
        return
    for sentence in (_no_step(order, tail), _sorted(manifest, layout, order, world_size)):
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


def check_memory(limit: MemoryLimit, costs: DataCosts, order: Order, lanes: int) -> None:
    """Checks that a rank can read so many lanes of an order in the memory that it may use.

    Warns the caller of the loader's constructor if it can, but takes more than it should.

    Raises:
        ValueError: The caller's limit is too little, or all of the rank's memory.
    """
    needed = costs.least_bytes(order, lanes)
    row_bytes, column = costs.largest_row
    if row_bytes > (limit.size_bytes if limit.is_given else limit.rank_bytes):
        raise ValueError(
            f"column {column!r} has a row that takes {row_bytes:,} bytes once decoded, and "
            + (
                f"memory_budget_bytes={limit.size_bytes:,}. Give more"
                if limit.is_given
                else f"a rank may have {limit.rank_bytes:,} here. Give ranks more memory"
            )
            + ", write shorter values in more rows, or leave the column out with columns=[…]."
        )
    if needed <= limit.size_bytes:
        return
    batch_bytes = costs.batch_bytes(order, lanes)
    streams, open_bytes = costs.open_groups(order, lanes), costs.open_bytes(order, lanes)
    parts = (
        f"{open_bytes:,} for {streams} row groups that are read side by side, "
        f"{costs.block_bytes(order, lanes):,} for the rows that are shuffled, and "
        f"{2 * batch_bytes:,} for two batches of {lanes * order.lane_batch:,} rows"
    )
    ways = []
    fits = _window_that_fits(limit, costs, order, lanes)
    if fits is not None:
        ways.append(f"window_row_groups={fits}")
    elif lanes > 1:
        ways.append(f"fewer lanes than {order.lanes}")
    if not ways or 4 * batch_bytes > needed:
        ways.append("smaller batches" if 4 * batch_bytes > needed else "smaller row groups")
    if limit.is_given:
        raise ValueError(
            f"memory_budget_bytes={limit.size_bytes:,} is too little for this data set: a rank "
            f"needs about {needed:,} bytes, {parts}. Give that much, or {' and '.join(ways)}."
        )
    if needed > limit.rank_bytes:
        raise ValueError(
            f"a rank may have {limit.rank_bytes:,} bytes of memory here, and reading this data set "
            f"takes about {needed:,}, {parts}. Take {' and '.join(ways)}, on every rank."
        )
    warnings.warn(
        f"Reading this data set takes about {needed:,} bytes in a rank, {parts}; a quarter of the "
        f"memory that a rank may have here is {limit.size_bytes:,}. If ranks run out of memory, "
        f"take {' and '.join(ways)}, on every rank.",
        stacklevel=3,
    )


def _window_that_fits(limit: MemoryLimit, costs: DataCosts, order: Order, lanes: int) -> int | None:
    """The most row groups that lanes could read side by side, if fewer than now."""
    for window in range(order.window_groups - 1, 0, -1):
        smaller = replace(order, window_groups=window)
        if costs.least_bytes(smaller, lanes) <= limit.size_bytes:
            return window
    return None


def _sorted(manifest: Manifest, layout: Layout, order: Order, world_size: int) -> str | None:
    names = [name for name in layout.names if manifest.column(name).is_clustered]
    if not names or not order.shuffle:
        return None
    mixing = Mixing.of(manifest, order, world_size)
    if mixing.is_good:
        return None
    return f"The data set is sorted by {names[0]!r}: most row groups hold one value of it. {mixing}"

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
    """Warns the caller of the loader's constructor, on rank 0 alone."""
    if rank != 0:
        return
    lanes = order.lanes // world_size
    sentences = [
        _no_step(order, tail),
        _many_lanes(budget, lanes),
        _sorted(manifest, layout, order, world_size),
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


def _sorted(manifest: Manifest, layout: Layout, order: Order, world_size: int) -> str | None:
    names = [name for name in layout.names if manifest.column(name).is_clustered]
    if not names or not order.shuffle:
        return None
    mixing = Mixing.of(manifest, order, world_size)
    if mixing.is_good:
        return None
    return f"The data set is sorted by {names[0]!r}: most row groups hold one value of it. {mixing}"

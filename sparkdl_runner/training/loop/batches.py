"""The batches of a training: how many there are, which are still to come, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

Batch = Mapping[str, Tensor]


def require_batches(train_data: Any) -> int:
    """How many batches an epoch has on each rank.

    Raises:
        TypeError: The data have no length.
        ValueError: There is none.
    """
    count = len(train_data)
    if count:
        return count
    rows = getattr(train_data, "global_batch_size", None)
    raise ValueError(
        "train_data has no whole batch"
        + ("" if rows is None else f" of {rows} rows, which is what all ranks take in a step")
        + ". Take a smaller batch, fewer ranks, or more rows."
    )


def rest_of_epoch(train_data: Any, epoch: int) -> Iterator[Batch]:
    """The batches of an epoch that are still to be taken.

    Args:
        train_data: A loader, perhaps restored to the middle of this epoch; or any iterable.
        epoch: Counted from 0.
    """
    if not hasattr(train_data, "set_epoch"):
        yield from train_data
        return
    train_data.set_epoch(epoch)
    # A loader may have several epochs in one pass.
    yield from islice(train_data, len(train_data) - train_data.step)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch, where the model is."""
    if device.type == "cpu":
        return batch
    return {name: values.to(device, non_blocking=True) for name, values in batch.items()}


def rows_of(batch: Batch, column: str) -> int:
    """How many rows count: all, but those that only fill up a batch."""
    mask = batch.get("row_mask")
    return len(batch[column]) if mask is None else int(mask.sum())

"""One step of the optimizer: forward and backward passes, and what is checked between them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from torch import Tensor

from sparkdl_runner.training.loop.batches import Batch, on_device, rows_of
from sparkdl_runner.training.loop.finite import LossValue, require_finite

if TYPE_CHECKING:
    from sparkdl_runner.training.loop.trainer import Trainer


def take_step(trainer: Trainer, window: Sequence[Batch], epochs_done: float) -> int:
    """Takes a step with the mean gradient of some batches.

    Args:
        trainer: Gets the step's loss, and adds it up.
        window: The batches, of which only the last passes average gradients over the ranks.
        epochs_done: With the part of the one that goes on, for the warm-up.

    Returns:
        The rows of all batches.

    Raises:
        NonFiniteLossError: The loss of a batch is NaN or infinite.
        TypeError: ``train_step`` returned no loss.
    """
    ranks, rows = trainer.ranks, 0
    trainer.optimizer.zero_grad()
    trainer.loss = 0.0
    for place, on_host in enumerate(window, 1):
        batch = on_device(on_host, ranks.device)
        alone = place < len(window)
        with ranks.without_allreduce(trainer.network) if alone else nullcontext():
            with trainer.autocast():
                loss = trainer.train_step(batch)
            _require_loss(loss)
            value = LossValue(loss)
            if not loss.is_cuda:  # On a GPU the number is awaited behind the backward pass.
                require_finite(float(value), trainer.step + 1, ranks.rank, batch)
            (loss if len(window) == 1 else loss / len(window)).backward()
        number, count = float(value), rows_of(on_host, trainer.losses.labels[0])
        require_finite(number, trainer.step + 1, ranks.rank, batch)
        rows += count
        trainer.loss += number / len(window)
        trainer.loss_and_rows[0] += number * count
        trainer.loss_and_rows[1] += count
    with trainer.learning_rate.of_step(epochs_done):
        ranks.step(trainer.optimizer, trainer.model, trainer.gradient_clip_norm)
    trainer.step += 1
    return rows


def _require_loss(loss: object) -> None:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
        return
    found = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        found = f"a tensor {list(loss.shape)}" + ("" if loss.requires_grad else " without gradient")
    raise TypeError(
        f"train_step returned {found}; expected a tensor of one number that has a gradient."
    )

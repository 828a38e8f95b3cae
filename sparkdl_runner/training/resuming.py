"""Saves and restores the place of a training, to resume at the very step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sparkdl_runner.training.loop.trainer import Trainer


def save(trainer: Trainer, train_data: Any) -> None:
    """Saves all that a training needs to go on; to be called by all ranks."""
    assert trainer.checkpoints is not None  # noqa: S101 - the caller has asked
    # From now on ranks have equal buffers, as they would after they are restored.
    trainer.ranks.broadcast_buffers(trainer.model)
    totals = trainer.ranks.gather(torch.tensor([trainer.loss_and_rows], dtype=torch.float64))
    extra: dict[str, Any] = {
        "history": trainer.history,
        "loss_and_rows": torch.cat(totals).tolist(),
        "should_stop": trainer.should_stop,
        "best_weights": trainer.best_weights,
        "best_step": trainer.best_step,
        "learning_rate": trainer.learning_rate.state_dict(),
    }
    is_evaluated = len(trainer.history) > trainer.epoch
    extra["is_read"] = train_data.epoch > trainer.epoch and not is_evaluated
    trainer.checkpoints.save(
        trainer.step,
        trainer.model,
        trainer.optimizer,
        train_data,
        extra=extra,
        epoch=len(trainer.history),
        metrics=trainer.history[-1] if is_evaluated else None,
    )


def restore(trainer: Trainer, train_data: Any) -> bool:
    """Goes on from the newest checkpoint, if there is one; to be called by all ranks.

    Returns:
        Whether all batches of the epoch are taken, and only its evaluation is left.

    Raises:
        TypeError: The loader cannot go on in the middle of an epoch.
    """
    if trainer.checkpoints is None:
        return False
    if not hasattr(train_data, "load_state_dict"):
        raise TypeError(
            f"train_data is a {type(train_data).__name__}, which has no state to save; with "
            "checkpoints, give a loader of make_torch_dataloader."
        )
    restored = trainer.checkpoints.restore(trainer.model, trainer.optimizer, train_data)
    if restored is None:
        return False
    state, ranks = restored.extra, trainer.ranks
    trainer.step, trainer.history = restored.step, state["history"]
    trainer.should_stop, trainer.best_weights = state["should_stop"], state["best_weights"]
    trainer.best_step = state.get("best_step", 0)  # Earlier versions did not keep it.
    trainer.learning_rate.load_state_dict(state["learning_rate"])
    totals = state["loss_and_rows"]
    if len(totals) == ranks.size:
        trainer.loss_and_rows = totals[ranks.rank]
    else:  # They were other ranks; all that counts is the sum.
        whole = [sum(column) for column in zip(*totals, strict=True)]
        trainer.loss_and_rows = whole if ranks.rank == 0 else [0.0, 0.0]
    return bool(state["is_read"])

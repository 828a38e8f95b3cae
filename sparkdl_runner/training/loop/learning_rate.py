"""The learning rate: a warm-up where many ranks make the batch large, and the user's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau


class LearningRate:
    """The learning rates of an optimizer, step by step.

    Args:
        optimizer: Has them.
        make_scheduler: Makes what changes them after each epoch; None for nothing.
        warmup_epochs: Over so many epochs they grow from the optimizer's own to ``size`` times
            that, where they stay ("gradual warmup" of https://arxiv.org/abs/1706.02677); 0 for
            never.
        size: The number of ranks.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        make_scheduler: Callable[[Optimizer], Any] | None,
        *,
        warmup_epochs: float,
        size: int,
    ) -> None:
        self.scheduler = None if make_scheduler is None else make_scheduler(optimizer)
        self._optimizer = optimizer
        self._warmup_epochs = warmup_epochs
        self._size = size

    def factor(self, epochs_done: float) -> float:
        """The factor of the optimizer's own rate after so many epochs."""
        if not self._warmup_epochs:
            return 1.0
        return 1 + min(epochs_done / self._warmup_epochs, 1) * (self._size - 1)

    def of_step(self, epochs_done: float) -> AbstractContextManager[None]:
        """A block for the optimizer's step after so many epochs."""
        factor = self.factor(epochs_done)
        return nullcontext() if factor == 1 else _scaled(self._optimizer, factor)

    def end_epoch(self, metrics: Mapping[str, float]) -> None:
        """Lets the scheduler take its step; some go by the validation's loss, or the training's."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(metrics.get("val_loss", metrics["loss"]))
        elif self.scheduler is not None:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state; all else follows from the step."""
        return {} if self.scheduler is None else self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the state was taken."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state)


@contextmanager
def _scaled(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """Multiplies the rates within its block alone: schedulers and checkpoints see the own ones."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

"""When a training that gets no better ends, and which of its epochs was the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Ends a training after ``patience`` epochs in which a metric got no better.

    The weights of the best epoch are the training's result. All follows from the history, so that
    a training that goes on from a checkpoint ends where it would have ended.

    Args:
        metric: Its name in the history; names with ``val_`` need validation data.
        mode: Whether small (``"min"``) or large (``"max"``) is good.
        patience: How many epochs in a row may bring nothing better; None to go on whatever they
            bring, and take back the best weights at the end.
        min_delta: By how much it must be better to count.

    Raises:
        ValueError: A value is out of range.
    """

    metric: str = "val_loss"
    mode: Literal["min", "max"] = "min"
    patience: int | None = 3
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode is {self.mode!r}; expected 'min' or 'max'.")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is {self.patience}; expected 1 or more.")
        if not self.min_delta >= 0:
            raise ValueError(f"min_delta is {self.min_delta}; expected 0 or more.")

    def best_epoch(self, history: Sequence[Mapping[str, float]]) -> int:
        """The epoch whose weights are the result, counted from 0; -1 if there is none.

        NaN is never the best.

        Raises:
            ValueError: The history has no such metric.
        """
        best, best_epoch = math.nan, -1
        for epoch, metrics in enumerate(history):
            if self.metric not in metrics:
                raise ValueError(
                    f"early_stopping watches {self.metric!r}, and each epoch has "
                    f"{', '.join(metrics)}. Give metric= one of these."
                )
            value = metrics[self.metric]
            gain = best - value if self.mode == "min" else value - best
            if gain > self.min_delta or (math.isnan(best) and not math.isnan(value)):
                best, best_epoch = value, epoch
        return best_epoch

    def is_over(self, history: Sequence[Mapping[str, float]]) -> bool:
        """Whether the training ends after the last epoch of this history."""
        epochs_since = len(history) - 1 - self.best_epoch(history)
        return self.patience is not None and epochs_since >= self.patience

"""A loss that is NaN or infinite ends a training, with the batch that it came from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class NonFiniteLossError(ArithmeticError):
    """The loss of a step is NaN or infinite."""


class LossValue:
    """The number in a loss, on its way to the host.

    On a GPU the copy is only begun, so that the backward pass can be queued behind it: who then
    asks for the number waits for the forward pass alone, while the device goes on.

    Args:
        loss: A tensor of one number.
    """

    def __init__(self, loss: Tensor) -> None:
        self._value = loss.detach()
        self._is_copied: Any = None
        if loss.is_cuda:
            on_device, self._value = (
                self._value,
                torch.empty_like(self._value, device="cpu", pin_memory=True),
            )
            self._value.copy_(on_device, non_blocking=True)
            self._is_copied = torch.cuda.Event()
            self._is_copied.record()

    def __float__(self) -> float:
        if self._is_copied is not None:
            self._is_copied.synchronize()
        return float(self._value)


def require_finite(loss: float, step: int, rank: int, batch: Mapping[str, Any]) -> None:
    """Raises NonFiniteLossError, which tells step, rank and the batch's statistics."""
    if math.isfinite(loss):
        return
    lines = "\n".join(f"  {name}: {_statistics(values)}" for name, values in batch.items())
    raise NonFiniteLossError(
        f"The loss of step {step} is {loss} on rank {rank}; the optimizer has not used it. Its "
        f"batch:\n{lines}\nIf the batch is as it should be, take a smaller learning rate, or "
        "gradient_clip_norm."
    )


def _statistics(values: Any) -> str:
    if not isinstance(values, Tensor):
        return f"a {type(values).__name__}"
    text = f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
    if not values.numel():
        return text
    numbers = values.double()
    finite = numbers[torch.isfinite(numbers)]
    if len(finite):
        text += f", from {finite.min():.4g} to {finite.max():.4g}, mean {finite.mean():.4g}"
    broken = numbers.numel() - len(finite)
    return text + (f", {broken} of {numbers.numel()} NaN or infinite" if broken else "")

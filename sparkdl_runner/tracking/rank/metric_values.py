"""The values of ``log_metrics``: numbers, and tensors that a GPU may still be computing."""

from __future__ import annotations

import numbers
import operator
import re
from typing import Any

# The characters that MLflow takes in a name.
_NAME = re.compile(r"[\w\-. :/]+")


class GpuNumber:
    """A copy of a tensor of one number, fetched later, so that the step need not wait for the GPU.

    Without the event, the thread that fetches it would read by its own stream, which waits only for
    the default one, and could find what was in that memory before.

    Args:
        value: A detached tensor on a GPU.
    """

    def __init__(self, value: Any) -> None:
        import torch

        self._value = value.clone()
        self._is_computed = torch.cuda.Event()
        self._is_computed.record(torch.cuda.current_stream(value.device))

    def __float__(self) -> float:
        """Waits for the number, from any thread."""
        self._is_computed.synchronize()
        return float(self._value)


def check_name(name: Any) -> None:
    """Raises ValueError where MLflow takes no such name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"log_metrics: {name!r} cannot name a metric; MLflow takes letters, digits and "
            "_ - . : / and spaces."
        )


def as_number(name: str, value: Any, step: int) -> Any:
    """``value`` as a float, or as a ``GpuNumber``."""
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "detach") and getattr(value, "numel", lambda: 0)() == 1:
        value = value.detach()
        return GpuNumber(value) if value.is_cuda else float(value)
    if getattr(value, "shape", None) in ((), (1,)) and hasattr(value, "item"):
        number = value.item()
        if isinstance(number, numbers.Real):
            return float(number)
    raise TypeError(
        f"log_metrics: the metric {name!r} at step {step} is {value!r:.100}, a "
        f"{type(value).__name__}; expected a number, or a tensor of one."
    )


def as_whole_number(name: str, value: Any) -> int:
    """``value`` as an int; a bool is none."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"log_metrics: {name} is {value!r:.100}; expected a whole number.")

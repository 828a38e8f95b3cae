"""A number that a GPU may still be computing: fetched later, without stopping the step."""

from __future__ import annotations

from typing import Any


class GpuNumber:
    """A copy of a tensor of one number, ordered after the stream that computes it.

    Without the event, another thread would read by its own stream, which waits for none but the
    default one, and could find what was in that memory before.

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

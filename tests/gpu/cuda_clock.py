"""Times on a GPU's own clock, by CUDA events."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

Span = tuple[float, float]
"""Begin and end, in seconds since some moment."""


def median_seconds(action: Callable[[], Any], repeat: int = 10) -> float:
    """How long the GPU takes for what ``action`` starts on the current stream."""
    action()  # The first one also makes buffers and loads kernels.
    times = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return statistics.median(times)


class Spans:
    """When things happened on streams.

    Args:
        origin: The moment from which to count; now, if it is not given.
    """

    def __init__(self, origin: torch.cuda.Event | None = None) -> None:
        self.origin = origin or torch.cuda.Event(enable_timing=True)
        if origin is None:
            self.origin.record()
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def time(self, action: Callable[[], Any], stream: torch.cuda.Stream | None = None) -> Any:
        """Calls ``action``, and notes when the stream begins and ends with what it started."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        result = action()
        end.record(stream)
        self._events.append((start, end))
        return result

    def read(self) -> list[Span]:
        """Waits for all of them."""
        torch.cuda.synchronize()
        return [
            (self.origin.elapsed_time(start) / 1000, self.origin.elapsed_time(end) / 1000)
            for start, end in self._events
        ]


def total(spans: list[Span]) -> float:
    """How long all spans take together."""
    return sum(end - start for start, end in spans)


def overlap(some: list[Span], others: list[Span]) -> float:
    """For how long one of ``some`` and one of ``others`` were under way at once.

    Neither may overlap among themselves, as what one stream does never does.
    """
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in some
        for other_start, other_end in others
    )

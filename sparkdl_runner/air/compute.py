"""The GPUs that AI Runtime offers, by name."""

from __future__ import annotations

from enum import Enum

__all__ = ["GPUType"]


class GPUType(Enum):
    """A model of GPU, for ``distributed(gpu_type=…)``."""

    A10 = "A10"
    H100 = "H100"

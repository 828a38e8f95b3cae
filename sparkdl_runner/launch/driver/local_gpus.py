"""The GPU of a rank of this host that is to see a single one."""

from __future__ import annotations

import os
from pathlib import Path

DEVICES = Path("/dev")


def gpu_of(rank: int) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` for a rank; empty where this host shows no GPU.

    Ranks beyond the number of GPUs begin with the first again.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    else:
        gpus = [str(number) for number in range(len(list(DEVICES.glob("nvidia[0-9]*"))))]
    return gpus[rank % len(gpus)] if gpus else ""

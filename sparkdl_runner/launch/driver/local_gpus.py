"""The GPUs of this host, and that of a rank which is to see a single one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

DEVICES = Path("/dev")


def visible_gpus() -> list[str]:
    """The GPUs that a process of this host sees, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    return [str(number) for number in range(len(list(DEVICES.glob("nvidia[0-9]*"))))]


def gpu_names(gpus: list[str]) -> list[str]:
    """What NVIDIA's tool calls these GPUs, such as ``NVIDIA H100 80GB HBM3``; empty without it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", f"--id={','.join(gpus)}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines()]


def gpu_of(rank: int) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` for a rank; empty where this host shows no GPU.

    Ranks beyond the number of GPUs begin with the first again.
    """
    gpus = visible_gpus()
    return gpus[rank % len(gpus)] if gpus else ""

"""Where figures were measured: the hardware, and the versions of what ran."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = (
    *("sparkdl-runner", "pyspark", "torch", "horovod", "pyarrow", "petastorm", "mlflow"),
    *("ray", "litdata", "mosaicml-streaming", "datasets", "torchdata"),
)


@functools.cache
def machine() -> dict[str, Any]:
    """The processor, its cores, memory and system; of GPUs their names."""
    described = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in described if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "physical_cores": psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
        "system": platform.platform(),
    }


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())]


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of the libraries beside it."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found

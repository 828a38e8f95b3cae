"""Describes the machine: its hardware, and the versions of Python and libraries."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from sparkdl_runner.base.cores import usable_cores

_PACKAGES = ["sparkdl-runner", "pyspark", "torch", "horovod", "pyarrow", "petastorm", "mlflow"]
_PACKAGES += ["numpy", "pandas", "pillow", "scikit-learn"]


@functools.cache
def machine() -> dict[str, Any]:
    """The processor, its cores, memory and system; of GPUs their names."""
    described = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in described if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "physical_cores": min(psutil.cpu_count(logical=False) or 1, usable_cores()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
        "system": platform.platform(),
    }


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())]


def versions() -> dict[str, str]:
    """The versions of Python, of this package and its sources, and of the libraries beside it."""
    found = {"python": platform.python_version()}
    show = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    show += ["--abbrev=40", "--exclude=*"]
    with suppress(OSError):
        commit = subprocess.run(show, capture_output=True, text=True, check=False).stdout.strip()
        found |= {"commit": commit} if commit else {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found

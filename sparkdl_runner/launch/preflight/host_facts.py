"""The facts of a host: versions, limits, the disk of its cache folder, its GPUs' health."""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib import metadata

from sparkdl_runner.base.cores import usable_cores
from sparkdl_runner.rank.control_group import cpu_limit, limit_bytes

_CHUNK_BYTES, _MOST_BYTES = 4 << 20, 1 << 30
# NVIDIA's tool waits for a driver that hangs, for ever.
_GPU_SECONDS = 5.0
_FIELDS = (
    *("index", "ecc.errors.uncorrected.volatile.total"),
    *("retired_pages.pending", "clocks_throttle_reasons.active"),
)
# By the hardware, by heat (two kinds) and by the power brake: nvmlClocksEventReasons of nvml.h.
_THROTTLED = 0x08 | 0x20 | 0x40 | 0x80
# Of memory, NVLink, the bus and the GSP, not of programs: docs.nvidia.com/deploy/xid-errors.
_HARDWARE_XIDS = {48, 63, 64, 74, 79, 92, 94, 95, 119, 120}


def same_everywhere() -> dict[str, str]:
    """Versions, and limits of this process, as texts that should be the same on all hosts."""
    memory = limit_bytes() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "processors": f"{min(usable_cores(), cpu_limit() or float('inf')):.3g}",
        # In steps of a fifth: hosts of one kind differ by some megabytes.
        "memory": f"{2 ** (round(4 * math.log2(memory / (1 << 30))) / 4):.3g} GiB",
        "open files": str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        "Python": platform.python_version(),
    }
    for name in ("torch", "horovod", "numpy", "pyarrow"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def disk(seconds: float) -> tuple[dict[str, float], list[str]]:
    """Writes where loaders keep remote files, for so long, and reads that again from the disk.

    Returns:
        Rates in bytes a second, and faults.
    """
    # As of ``data.remote.cache_choice``, which takes a second to import.
    listed = os.environ.get("LOCAL_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or ""
    chunk, size = os.urandom(_CHUNK_BYTES), 0
    try:
        with tempfile.TemporaryFile(dir=listed.split(",")[0] or None, buffering=0) as file:
            began = time.perf_counter()
            while size < _MOST_BYTES and time.perf_counter() < began + seconds:
                size += file.write(chunk)
                os.fsync(file.fileno())
            written = time.perf_counter()
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            while file.read(_CHUNK_BYTES):
                pass
            took = written - began, time.perf_counter() - written
    except OSError as error:
        return {}, [f"no file can be written for a cache ({error})"]
    return {"writing to the disk": size / took[0], "reading the disk": size / took[1]}, []


class GpuHealth:
    """Asks NVIDIA's tool and the kernel's log, in processes that are left behind if they hang."""

    def __init__(self) -> None:
        # Asked before the GPU computes, and answered meanwhile: an idle one is not throttled.
        query = ["nvidia-smi", "--format=csv,noheader", f"--query-gpu={','.join(_FIELDS)}"]
        self._asked = [_started(command) for command in (query, ["dmesg"])]

    def faults(self) -> list[str]:
        """The faults that the tools tell; none if no tool is installed."""
        told = [_output(process) for process in self._asked]
        if told[0] is None and self._asked[0] is not None:
            return [f"nvidia-smi does not answer within {_GPU_SECONDS:g} s"]
        return gpu_faults(told[0] or "", told[1] or "")


def gpu_faults(output: str, log: str) -> list[str]:
    """The faults in the output of nvidia-smi and dmesg."""
    faults = []
    for line in output.splitlines():
        index, errors, pending, reasons = [cell.strip() for cell in f"{line},,,".split(",")[:4]]
        if errors.isdigit() and int(errors):
            faults.append(f"GPU {index} has {errors} uncorrected ECC errors")
        if pending == "Yes":
            faults.append(f"GPU {index} has pages of memory to retire")
        if re.fullmatch("0x[0-9a-fA-F]+", reasons) and int(reasons, 16) & _THROTTLED:
            faults.append(f"GPU {index} is throttled (reasons {reasons})")
    xids = {int(number) for number in re.findall(r"NVRM: Xid .*?: (\d+)", log)}
    return faults + [f"Xid {number} since it started" for number in sorted(xids & _HARDWARE_XIDS)]


def _started(command: list[str]) -> subprocess.Popen[bytes] | None:
    with suppress(OSError):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return None


def _output(process: subprocess.Popen[bytes] | None) -> str | None:
    """Its output; None if it takes too long. Then it is killed, and nobody waits for its end."""
    if process is None:
        return None
    try:
        return process.communicate(timeout=_GPU_SECONDS)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()
        return None

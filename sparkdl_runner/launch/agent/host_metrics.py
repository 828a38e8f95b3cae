"""How busy a host is: CPU, memory, disk, network and GPUs, under the names that MLflow uses.

What a percentage says already is left out, and a disk that neither fills nor is nearly full.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

LOOK_SECONDS = 10.0
# The first look comes early, so that a short run has one, too.
FIRST_LOOK_SECONDS = 2.0
_MEGA = 1e6
_NEARLY_FULL = 90


def look_until(is_over: threading.Event, tell: Callable[[dict[str, float]], None]) -> None:
    """Looks at this host now and then, until ``is_over`` is set."""
    with suppress(Exception):  # Missing figures are no reason to end a training.
        host = HostMetrics()
        pause = FIRST_LOOK_SECONDS
        while not is_over.wait(pause):
            tell(host.look())
            pause = LOOK_SECONDS


class HostMetrics:
    """Looks at this host; network and CPU count from one look to the next."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # Its first answer means nothing.
        self._network = psutil.net_io_counters()
        self._disk = psutil.disk_usage("/").percent
        self._gpus = _gpu_handles()
        self._joules = self._energy()

    def look(self) -> dict[str, float]:
        """The figures by name: percentages, and megabytes of 10^6 bytes."""
        figures = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_percentage": psutil.virtual_memory().percent,
        }
        with suppress(OSError):
            disk = psutil.disk_usage("/").percent
            if disk >= _NEARLY_FULL or abs(disk - self._disk) >= 1:
                figures["disk_usage_percentage"] = disk
        network = psutil.net_io_counters()
        if network is not None and self._network is not None:
            received = network.bytes_recv - self._network.bytes_recv
            sent = network.bytes_sent - self._network.bytes_sent
            # What a driver and its executors say to one another is no use of the network.
            figures["network_receive_megabytes"] = round(received / _MEGA, 1)
            figures["network_transmit_megabytes"] = round(sent / _MEGA, 1)
        self._network = network
        for index, handle in enumerate(self._gpus):
            with suppress(Exception):  # A GPU may be lost, which ranks will tell.
                figures |= _look_at_gpu(index, handle)
        if (joules := self._energy()) > self._joules > 0:
            figures["gpu_energy_kilojoules"] = (joules - self._joules) / 1000
        return figures

    def _energy(self) -> float:
        """The joules that all GPUs have taken since their driver was loaded; 0 if unknown."""
        with suppress(Exception):  # GPUs before Volta do not tell.
            nvml = importlib.import_module("pynvml")
            return float(sum(map(nvml.nvmlDeviceGetTotalEnergyConsumption, self._gpus)) / 1000)
        return 0.0


def _gpu_handles() -> list[Any]:
    """NVIDIA's GPUs, where its management library is there."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except Exception:  # Neither the package nor the driver need be there.
        return []


def _look_at_gpu(index: int, handle: Any) -> dict[str, float]:
    nvml = importlib.import_module("pynvml")
    figures = {}
    # Each by itself: with MIG there is no utilization, and some GPUs have no memory of their own.
    with suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        figures[f"gpu_{index}_memory_usage_percentage"] = 100 * memory.used / memory.total
        figures[f"gpu_{index}_memory_usage_megabytes"] = memory.used / _MEGA
    with suppress(nvml.NVMLError):
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        figures[f"gpu_{index}_utilization_percentage"] = float(busy)
    with suppress(nvml.NVMLError):
        watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        figures[f"gpu_{index}_power_usage_watts"] = watts
    return figures

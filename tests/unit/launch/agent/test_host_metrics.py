"""A host's GPUs, as far as NVIDIA's library tells of each."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from sparkdl_runner.launch.agent import host_metrics
from sparkdl_runner.launch.agent.host_metrics import HostMetrics


class NVMLError(Exception):
    """As the library's own."""


def refuse(handle: object) -> None:
    raise NVMLError("Not Supported")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The library, with one GPU."""
    library = ModuleType("pynvml")
    memory = SimpleNamespace(used=20_000_000, total=80_000_000)
    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: memory,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=40),
        "nvmlDeviceGetPowerUsage": lambda handle: 350_000,
    }.items():
        setattr(library, name, answer)
    library.NVMLError = NVMLError
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def of_gpus() -> dict[str, float]:
    return {name: value for name, value in HostMetrics().look().items() if name.startswith("gpu_")}


EVERYTHING = {
    "gpu_0_memory_usage_percentage": 25.0,
    "gpu_0_memory_usage_megabytes": 20.0,
    "gpu_0_utilization_percentage": 40.0,
    "gpu_0_power_usage_watts": 350.0,
}


def test_all_figures_of_a_gpu(nvml):
    assert of_gpus() == EVERYTHING


@pytest.mark.parametrize(
    ("refused", "figures"),
    [
        ("nvmlDeviceGetMemoryInfo", "memory_usage"),
        ("nvmlDeviceGetUtilizationRates", "utilization"),
        ("nvmlDeviceGetPowerUsage", "power"),
    ],
)
def test_what_a_gpu_does_not_tell_keeps_no_other_figure_away(nvml, refused, figures):
    setattr(nvml, refused, refuse)
    assert of_gpus() == {name: value for name, value in EVERYTHING.items() if figures not in name}


def test_a_disk_is_told_once_it_fills_or_is_nearly_full(monkeypatch):
    def told(first, then):
        shares = iter([first, then])
        disk_usage = lambda _: SimpleNamespace(percent=next(shares))  # noqa: E731
        monkeypatch.setattr(host_metrics.psutil, "disk_usage", disk_usage)
        return HostMetrics().look().get("disk_usage_percentage")

    assert [told(40.0, 40.5), told(40.0, 41.0), told(95.0, 95.0)] == [None, 41.0, 95.0]


def test_a_network_that_nobody_uses_is_a_zero(monkeypatch):
    counts = iter([SimpleNamespace(bytes_recv=n, bytes_sent=70 * n) for n in (0, 4_000)])
    monkeypatch.setattr(host_metrics.psutil, "net_io_counters", lambda: next(counts))
    found = HostMetrics().look()
    assert (found["network_receive_megabytes"], found["network_transmit_megabytes"]) == (0.0, 0.3)


def test_the_energy_of_all_gpus_since_the_first_look(nvml):
    told = iter([5_000_000, 5_000_000 + 42_000])
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: next(told)
    assert of_gpus() == EVERYTHING | {"gpu_energy_kilojoules": 0.042}

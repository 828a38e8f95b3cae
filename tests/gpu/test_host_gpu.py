"""What is said of a host's GPUs: by NVML, by doctor, to Spark, and by metrics of a step."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkdl_runner.doctor import examination
from sparkdl_runner.doctor.findings.finding import OK, PROBLEM, Finding, problem
from sparkdl_runner.doctor.question import Question
from sparkdl_runner.launch.agent.host_metrics import HostMetrics
from sparkdl_runner.tracking.rank.metric_values import GpuNumber

ROOT = Path(__file__).parents[2]


@pytest.mark.gpu
def test_nvml_sees_what_is_used(device, figure) -> None:
    import pynvml

    host = HostMetrics()
    pynvml.nvmlInit()
    torch.cuda.empty_cache()  # Else what tests before left there is used, and nothing grows.
    assert len(host._gpus) == pynvml.nvmlDeviceGetCount()
    before = host.look()
    taken = torch.ones(2 << 30, dtype=torch.uint8, device=device)
    weight = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    for _ in range(1000):
        weight @ weight
    time.sleep(1)  # NVML says what was in use in the last moments.
    after = host.look()
    torch.cuda.synchronize()
    grown = {
        name: after[name] - before[name]
        for name in after
        if name.endswith("memory_usage_megabytes")
    }
    # NVML numbers all GPUs of the host, CUDA those that this process may see.
    name = max((name for name in grown if name.startswith("gpu_")), key=grown.__getitem__)
    assert grown[name] >= taken.nbytes / 1e6
    gpu = name.removesuffix("_memory_usage_megabytes")
    assert 0 < after[f"{gpu}_memory_usage_percentage"] <= 100
    for measured, unit in (("utilization_percentage", "%"), ("power_usage_watts", "W")):
        if f"{gpu}_{measured}" in after:  # Not all GPUs tell, nor those that MIG cut up.
            figure(f"{measured} by NVML", after[f"{gpu}_{measured}"], unit, "kept busy")


def findings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    """What doctor finds on this host where no Spark is looked for."""
    not_looked_for = [problem("Not looked for.", advice="")]
    monkeypatch.setattr(examination.INSTALLATION, "run", lambda _: not_looked_for)
    report = examination.examine(Question(backends=("torch",), gpus=True))
    return {finding.check: finding for finding in report.findings}


def test_doctor_finds_the_gpu(device, monkeypatch) -> None:
    found = findings(monkeypatch)
    assert found["torch"].status == OK
    if device.type == "cuda":
        assert found["gpu"].status == OK
        name = torch.cuda.get_device_name(device) if shutil.which("nvidia-smi") else "GPU(s)"
        assert name in found["gpu"].found
        assert "gpu.torch" not in found
        assert f"for CUDA {torch.version.cuda}" in found["torch"].found
    else:
        assert found["gpu"].status == PROBLEM
        assert found["gpu"].found.startswith("This host has no GPU: ")


@pytest.mark.gpu
def test_spark_is_told_of_the_gpus(device) -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs nvidia-smi")
    done = subprocess.run(
        ["bash", str(ROOT / "conf" / "spark" / "discover_gpus.sh")],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["name"] == "gpu"
    assert len(told["addresses"]) == torch.cuda.device_count()


@pytest.mark.gpu
def test_numbers_of_a_side_stream_are_fetched_when_they_are_there(device) -> None:
    weight = torch.randn(4096, 4096, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    said: list[GpuNumber] = []
    with torch.cuda.stream(side):
        for number in range(20):
            slow = weight
            for _ in range(5):
                slow = torch.tanh(slow @ slow)
            said.append(GpuNumber(0 * slow[0, 0] + number))
    fetched: list[Any] = []
    thread = threading.Thread(target=lambda: fetched.extend(map(float, said)))
    thread.start()
    thread.join()
    assert fetched == list(range(20))

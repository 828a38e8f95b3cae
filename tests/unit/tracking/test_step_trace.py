"""Which steps are traced, and what of them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdl_runner.tracking.rank.step_trace import FIRST_STEP, TRACED_STEPS, StepTrace


@pytest.mark.parametrize("supported", [{"cpu"}, {"cpu", "cuda"}])
def test_some_early_steps_are_traced_with_the_gpu_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supported: set[str]
) -> None:
    calls: list[object] = []

    def profile(activities: list[str]) -> SimpleNamespace:
        calls.append(set(activities))
        told = {name: lambda name=name: calls.append(name) for name in ("start", "step", "stop")}
        return SimpleNamespace(**told, export_chrome_trace=calls.append)

    profiler = SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CPU="cpu", CUDA="cuda"),
        supported_activities=lambda: supported,
        profile=profile,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(profiler=profiler))
    trace = StepTrace(tmp_path / "trace.json.gz")
    for _ in range(FIRST_STEP + TRACED_STEPS + 3):
        trace.step()
    trace.close()
    steps = ["step"] * TRACED_STEPS
    assert calls == [supported, "start", *steps, "stop", str(tmp_path / "trace.json.gz")]

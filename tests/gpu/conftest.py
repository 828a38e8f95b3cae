"""What tests of GPUs share: the device, the figures they measure, and what is left out and why.

With SPARKDL_GPU_RECORDS, everything is also a line of JSON in that file as soon as it is known, so
that a crash loses nothing of what came before it. ``run.py`` makes tables of these lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
RECORDS = os.environ.get("SPARKDL_GPU_RECORDS")


def _record(**fields: Any) -> None:
    if RECORDS:
        with open(RECORDS, "a") as records:
            print(json.dumps(fields), file=records)


@pytest.fixture
def figure() -> Callable[..., None]:
    """Notes a figure: its name, value and unit, and what it is to be compared with."""

    def note(name: str, value: float, unit: str, beside: str = "") -> None:
        _record(kind="figure", name=name, value=value, unit=unit, beside=beside)

    return note


@pytest.fixture(scope="session", autouse=True)
def device() -> Any:
    """The GPU, or the CPU where there is none."""
    import torch

    # Both set variables of the environment at their first use, which no test may seem to do.
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.init()
    return torch.device("cuda", torch.cuda.current_device())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    if not ours:
        return
    import torch

    for item in ours:
        if not RECORDS:  # The kit, which sets it, is in none of the lanes.
            item.add_marker(pytest.mark.one_lane)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            reason = f"needs a GPU, and torch {torch.__version__} sees none"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_logstart(nodeid: str) -> None:
    _record(kind="started", test=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    why = ""
    if report.skipped and isinstance(report.longrepr, tuple):
        why = report.longrepr[2].removeprefix("Skipped: ")
    elif report.failed:
        why = report.longreprtext[-4000:]
    _record(
        kind="test", test=report.nodeid, outcome=report.outcome, seconds=report.duration, why=why
    )

"""Whether a slow rank is named while it trains, and no rank of a healthy training is.

Healthy trainings run beside two busy loops, so that their ranks share the cores. For the others a
control group gives one rank half of a core (root alone can make one).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.figures import listed
from sparkdl_runner import DistributedRunner, RunConfig

HELP = "whether a slow rank is named, and no rank of a healthy training is"
SLOW_RANK = 1
_BUSY_LOOP = [sys.executable, "-c", "while True: pass"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--healthy", type=int, default=50, help="healthy trainings")
    parser.add_argument("--slowed", type=int, default=5, help="trainings with a slowed rank")
    parser.add_argument("--steps", type=int, default=200, help="steps of each")
    parser.add_argument("--burners", type=int, default=2, help="busy loops beside healthy ones")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the trainings, and keeps what was named at which step."""
    healthy, slowed = [], []
    for _ in range(arguments.healthy):
        with _busy_loops(arguments.burners):
            healthy.append(_trained(arguments.steps, None))
    for _ in range(arguments.slowed):
        with _half_a_core() as group:
            slowed.append(_trained(arguments.steps, group))
    return {"healthy": healthy, "slowed": slowed}


def table(report: Mapping[str, Any]) -> str:
    """How many were named, and after how many steps."""
    false_names = [one for one in report["healthy"] if one["named"]]
    steps = [_first_step(one) for one in report["slowed"]]
    return listed(
        {
            "healthy trainings": str(len(report["healthy"])),
            "of these with a rank that was named": str(len(false_names)),
            "slowed trainings": str(len(steps)),
            "steps until the slowed rank was named": ", ".join(map(str, steps)) or "none",
        }
    )


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether the slowed rank alone was named, within 100 steps."""
    steps = [_first_step(one) for one in report["slowed"]]
    return not any(one["named"] for one in report["healthy"]) and all(
        step is not None and step <= 100 for step in steps
    )


def _first_step(one: Mapping[str, Any]) -> int | None:
    """After how many steps of the training the slowed rank was named; None if it was not."""
    named = [step for step, text in one["named"] if text.startswith(f"rank {SLOW_RANK} ")]
    return named[0] if named else None


def _trained(steps: int, group: Path | None) -> dict[str, Any]:
    """What the events of a training of two ranks say of slow ranks."""
    with tempfile.TemporaryDirectory(prefix="slow-rank-") as folder:
        path = Path(folder) / "events.jsonl"
        config = RunConfig(
            tracking=False, events=str(path), driver_log_verbosity="log_callback_only"
        )
        runner = DistributedRunner(num_proc=-2, backend="torch", run_config=config)
        seconds = runner.run(_train, steps, None if group is None else str(group))
        events = [json.loads(line) for line in path.read_text().splitlines()]
    named, step = [], 0
    for event in events:
        step = event.get("step") or step
        if event["event"] == "slow_ranks":
            named.append((step, event["message"]))
    print(f"{seconds / steps * 1000:.0f} ms a step, named: {named}", flush=True)
    return {"step_seconds": seconds / steps, "named": named}


def _train(steps: int, group: str | None) -> float:
    """Trains a network of three layers by DistributedDataParallel; returns the seconds it took."""
    import time

    import torch
    import torch.distributed as dist

    from sparkdl_runner.tracking import log_metrics

    torch.manual_seed(0)
    dist.init_process_group()
    if group is not None and dist.get_rank() == SLOW_RANK:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    layers = [torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)]
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    rows = torch.randn(256, 1024)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        loss = network(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log_metrics(step, {"loss": loss}, samples=len(rows))
    return time.perf_counter() - began


@contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen(_BUSY_LOOP) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def _half_a_core() -> Iterator[Path]:
    """A control group, of version 2 or 1, whose processes have half of a core."""
    first = Path("/sys/fs/cgroup")
    name = f"slow-rank-{os.getpid()}"
    group = (first if (first / "cgroup.controllers").exists() else first / "cpu") / name
    group.mkdir()
    try:
        _set_first(group, {"cpu.max": "50000 100000", "cpu.cfs_quota_us": "50000"})
        yield group
    finally:
        with suppress(OSError):
            group.rmdir()


def _set_first(group: Path, values: Mapping[str, str]) -> None:
    name = next(name for name in values if (group / name).exists())
    (group / name).write_text(values[name])

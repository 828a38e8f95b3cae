"""Whether a slow rank is named while it trains, and no rank of a healthy training is.

Healthy trainings run beside two busy loops, so that their ranks share the cores. For the others a
control group gives one rank half of a core (root alone can make one). ``named rightly`` is 1 if the
slowed rank, and no other, was named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from sparkdl_runner import DistributedRunner, RunConfig

HELP = "whether a slow rank is named, and no rank of a healthy training is"
RANKS, ROWS, SLOW_RANK, MOST_STEPS, BUSY_LOOPS = 2, 256, 1, 100, 2
_BUSY_LOOP = [sys.executable, "-c", "while True: pass"]
STEP = Figure(unit="ms", better="less")

OPTIONS = (
    Option("healthy", 4, quick=1, help="healthy trainings"),
    Option("slowed", 3, quick=1, help="trainings with a slowed rank"),
    Option("steps", 200, help="steps of each"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Healthy trainings, and slowed ones."""
    facts = {
        "ranks": RANKS,
        "batch of a rank": ROWS,
        "global batch": RANKS * ROWS,
        "half a core": "given" if _can_make_groups() else "not measured: no control group here",
    }
    yield Case(
        name=f"healthy, beside {BUSY_LOOPS} busy loops",
        figures={"a step": STEP, "ranks named": Figure(unit="", better="less", bound=0)},
        ours={"ours": partial(_measure_healthy, arguments.steps)},
        turns=arguments.healthy,
        facts=facts,
    )
    if not _can_make_groups():
        return
    yield Case(
        name="a rank has half a core",
        figures={
            "a step": STEP,
            "named rightly": Figure(unit="", better="more", bound=1),
            "named after": Figure(unit="steps", better="less", bound=MOST_STEPS),
        },
        ours={"ours": partial(_measure_slowed, arguments.steps)},
        turns=arguments.slowed,
        facts=facts,
    )


def _measure_healthy(steps: int) -> dict[str, float]:
    loops = [subprocess.Popen(_BUSY_LOOP) for _ in range(BUSY_LOOPS)]
    try:
        seconds, named = _trained(steps, None)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    return {"a step": seconds / steps * 1000, "ranks named": len(named)}


def _measure_slowed(steps: int) -> dict[str, float]:
    with _half_a_core() as group:
        seconds, named = _trained(steps, str(group))
    is_right = bool(named) and all(text.startswith(f"rank {SLOW_RANK} ") for _, text in named)
    after = {"named after": named[0][0]} if is_right else {}
    return {"a step": seconds / steps * 1000, "named rightly": float(is_right), **after}


def _trained(steps: int, group: str | None) -> tuple[float, list[tuple[int, str]]]:
    """Trains; returns the seconds, and at which steps which rank was named."""
    with tempfile.TemporaryDirectory(prefix="slow-rank-") as folder:
        path = Path(folder) / "events.jsonl"
        config = RunConfig(tracking=False, events=str(path))
        runner = DistributedRunner(num_proc=-RANKS, backend="torch", run_config=config)
        seconds = runner.run(_train, steps, group)
        events = [json.loads(line) for line in path.read_text().splitlines()]
    named, step = [], 0
    for event in events:
        step = event.get("step") or step
        if event["event"] == "slow_ranks" and event["message"].startswith("rank "):
            named.append((step, event["message"]))
            print(f"  step {step}: {event['message']}", flush=True)
    return seconds, named


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
    rows = torch.randn(ROWS, 1024)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        loss = network(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log_metrics(step, {"loss": loss}, samples=len(rows))
    return time.perf_counter() - began


def _can_make_groups() -> bool:
    try:
        with _half_a_core():
            return True
    except OSError:
        return False


@contextmanager
def _half_a_core() -> Iterator[Path]:
    """A control group, of version 2 or 1, whose processes have half of a core.

    Raises:
        OSError: None can be made.
    """
    first = Path("/sys/fs/cgroup")
    name = f"slow-rank-{os.getpid()}"
    group = (first if (first / "cgroup.controllers").exists() else first / "cpu") / name
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text("50000 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text("50000")
        yield group
    finally:
        with suppress(OSError):
            group.rmdir()

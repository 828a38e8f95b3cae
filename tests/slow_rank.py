"""Whether a slow rank is named while it trains, and no rank of a healthy training is.

Healthy trainings run beside two busy loops, so that their ranks share the cores. For the others a
control group gives one rank half of a core. A slowed rank must be named, within a hundred steps,
and no other. ``make slow-rank N=50`` takes some seconds a training and needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkdl_runner import DistributedRunner, RunConfig

RANKS, ROWS, SLOW_RANK, MOST_STEPS, BUSY_LOOPS = 2, 256, 1, 100, 2
_BUSY_LOOP = [sys.executable, "-c", "while True: pass"]


def healthy(steps: int) -> bool:
    """Trains beside busy loops; whether no rank was named."""
    loops = [subprocess.Popen(_BUSY_LOOP) for _ in range(BUSY_LOOPS)]
    try:
        return not _named(steps, None)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def slowed(steps: int) -> bool:
    """Trains with a rank of half a core; whether it, and no other, was named in time.

    Raises:
        OSError: No control group can be made here.
    """
    with _half_a_core() as group:
        named = _named(steps, str(group))
    are_right = all(text.startswith(f"rank {SLOW_RANK} ") for _, text in named)
    return bool(named) and are_right and named[0][0] <= MOST_STEPS


def _named(steps: int, group: str | None) -> list[tuple[int, str]]:
    """Trains, and returns at which step which rank was named."""
    with tempfile.TemporaryDirectory(prefix="slow-rank-") as folder:
        path = Path(folder) / "events.jsonl"
        config = RunConfig(tracking=False, events=str(path))
        runner = DistributedRunner(num_proc=-RANKS, backend="torch", run_config=config)
        seconds = runner.run(_train, steps, group)
        events = [json.loads(line) for line in path.read_text().splitlines()]
    print(f"  {seconds / steps * 1000:.1f} ms a step", flush=True)
    named, step = [], 0
    for event in events:
        step = event.get("step") or step
        if event["event"] == "slow_ranks" and event["message"].startswith("rank "):
            named.append((step, event["message"]))
            print(f"  step {step}: {event['message']}", flush=True)
    return named


def _train(steps: int, group: str | None) -> float:
    """Trains a network of three layers by DistributedDataParallel; returns the seconds it took."""
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


def main() -> None:
    """Runs all trainings, and exits with 1 if one was told wrongly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--healthy", type=int, default=50, help="healthy trainings")
    parser.add_argument("--slowed", type=int, default=20, help="trainings with a slowed rank")
    parser.add_argument("--steps", type=int, default=200, help="of each training")
    arguments = parser.parse_args()
    # An exception, so that the busy loops and the control group go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    wrong = 0
    for kind, count in ((healthy, arguments.healthy), (slowed, arguments.slowed)):
        for number in range(1, count + 1):
            is_right = kind(arguments.steps)
            wrong += not is_right
            print(f"{kind.__name__} {number}: {'right' if is_right else 'WRONG'}", flush=True)
    print(f"{arguments.healthy + arguments.slowed} trainings, {wrong} of them wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

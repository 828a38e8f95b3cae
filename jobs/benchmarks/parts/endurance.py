"""Measures what many runs in one session, and ranks that print much, cost."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import psutil

from benchmarks.ranks.faulty_ranks import RANKS, healthy_run
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "many runs in one session, and much output"
_SETTLING_SECONDS, _LINES_PER_SECOND = 5.0, 5000
LESS = Figure(unit="", better="less")

OPTIONS = (
    Option("backends", ["horovod", "torch"]),
    Option("runs", 40, quick=5, help="runs in a row"),
    Option("rounds", 3, quick=1, help="of two trainings each"),
    Option("seconds", 5.0, quick=3, help="of each training of a round"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """The growth of a driver with many runs, and the cost of much output."""
    spark = start_spark("endurance benchmark", slots=RANKS)
    backends = itertools.cycle(arguments.backends)
    for _ in range(max(2, arguments.runs // 10)):  # Until the driver is warm.
        healthy_run(next(backends))
    yield Case(
        name=f"{arguments.runs} runs in a session",
        figures={
            "file descriptors left": LESS,
            "threads left": Figure(unit="", better="less", bound=0),
            "memory left": Figure(unit="MB", better="less"),
        },
        ours={"ours": partial(_left_by, arguments.runs, backends)},
        facts={"ranks": RANKS},
    )
    yield Case(
        name="ranks that print",
        figures={
            "speed": Figure(unit="steps/s", better="more"),
            "lines not shown": LESS,
        },
        ours={"5 MB/s each": partial(_train, arguments.seconds, _LINES_PER_SECOND)},
        peers={"nothing": partial(_train, arguments.seconds, 0)},
        turns=arguments.rounds,
        facts={"ranks": RANKS, "lines not shown": "their share; their number was told"},
    )
    spark.stop()


def _left_by(runs: int, backends: Iterator[str]) -> dict[str, float]:
    """The driver's growth with so many runs."""
    before = _held()
    for _ in range(runs):
        healthy_run(next(backends))
    after = _held(before["threads left"])
    return {name: after[name] - before[name] for name in before}


def _held(threads: float = 0) -> dict[str, float]:
    gc.collect()
    # A thread of Spark's may be about to end, and longer so where the machine is busy.
    deadline = time.monotonic() + _SETTLING_SECONDS
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    process = psutil.Process()
    return {
        "file descriptors left": process.num_fds(),
        "threads left": threading.active_count(),
        "memory left": process.memory_info().rss / 1e6,
    }


def _train(seconds: float, lines_per_second: int) -> dict[str, float]:
    """How fast ranks train that print so much each, and what became of the lines.

    Raises:
        RuntimeError: Lines were lost, and nothing said so.
    """
    from sparkdl_runner import DistributedRunner, RunConfig

    config = RunConfig(driver_log_verbosity="all")
    runner = DistributedRunner(num_proc=RANKS, backend="torch", run_config=config)
    told, shown = io.StringIO(), _Terminal()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(told):
        steps, printed = runner.run(_training(), seconds, lines_per_second)
    dropped = sum(map(int, re.findall(r"(\d+) lines of rank \d", told.getvalue())))
    if sum(shown.lines) + dropped < printed:
        raise RuntimeError(f"of {printed} lines {sum(shown.lines)} were shown, {dropped} told of")
    return {"speed": steps / seconds, **({"lines not shown": dropped / printed} if printed else {})}


class _Terminal(io.StringIO):
    """A terminal that counts lines and keeps none. Ranks' lines come from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []

    def write(self, text: str) -> int:
        self.lines.append(text.count("\n"))
        return len(text)


def _training() -> Callable[..., tuple[int, int]]:
    def train(seconds: float, lines_per_second: int) -> tuple[int, int]:
        """Steps that were made in the time, and lines that all ranks printed."""
        import sys
        import time

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        weight = torch.randn(256, 256)
        line, began = "x" * 999 + "\n", time.monotonic()
        steps = printed = 0
        while True:
            for _ in range(10):
                weight = torch.tanh(weight @ weight)
                dist.all_reduce(weight)
            steps += 10
            now = time.monotonic() - began
            due = int(now * lines_per_second)
            sys.stdout.write(line * (due - printed))
            printed = due
            # All ranks leave together: rank 0's clock decides.
            over = torch.tensor([float(dist.get_rank() == 0 and now > seconds), float(printed)])
            dist.all_reduce(over)
            if over[0]:
                return steps, int(over[1])

    return train

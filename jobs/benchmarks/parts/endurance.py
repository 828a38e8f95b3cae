"""Measures what many runs in one session, and ranks that print much, cost."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import re
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from benchmarks.ranks.faulty_ranks import RANKS, healthy_run
from benchmarks.figures import aligned, positive
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "many runs in one session, and much output"
_SETTLING_SECONDS = 5.0
_LINE = "x" * 999 + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--backends", nargs="+", default=["horovod", "torch"])
    parser.add_argument("--runs", type=positive, default=100, help="runs in a row")
    parser.add_argument(
        "--rounds", type=positive, default=3, help="of training in silence and loudly"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each training of a round")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures what many runs leave behind, and then what much output costs."""
    growth = _growth(arguments)
    return {"growth": growth, "output": _output_cost(arguments.rounds, arguments.seconds)}


def table(report: Mapping[str, Any]) -> str:
    """The driver's memory, and the speed of ranks that print much."""
    settings, cost = report["settings"], report["output"]
    rows = [("", f"before {settings['runs']} runs in a session", "after", "")]
    for name, (before, after) in report["growth"].items():
        rows.append((name, f"{before:,}", f"{after:,}", f"{after / before - 1:+.1%}"))
    return (
        f"{aligned(rows)}\n\nWhile each rank prints 5 MB/s it trains at {cost['speed']:.1%} of its "
        f"speed in silence (median of {settings['rounds']}). Of {cost['lines']:,} lines "
        f"{cost['dropped_lines']:,} were not shown, and that was said"
    )


def is_good(report: Mapping[str, Any]) -> bool:
    """Always true: lines that are lost silently raise an error."""
    return True


def _growth(arguments: argparse.Namespace) -> dict[str, tuple[int, int]]:
    """The driver's memory before and after many runs in one session, once it is warm."""
    spark = start_spark("sparkdl_runner endurance benchmark", slots=RANKS)

    def held(threads: int = 0) -> dict[str, int]:
        gc.collect()
        # A thread of Spark's may be about to end, and longer so where the machine is busy.
        deadline = time.monotonic() + _SETTLING_SECONDS
        while threading.active_count() > threads and time.monotonic() < deadline:
            time.sleep(0.05)
        process = psutil.Process()
        return {
            "file descriptors": process.num_fds(),
            "threads": threading.active_count(),
            "driver memory (bytes)": process.memory_info().rss,
        }

    backends = itertools.cycle(arguments.backends)
    for _ in range(max(2, arguments.runs // 10)):
        healthy_run(next(backends))
    before = held()
    for _ in range(arguments.runs):
        healthy_run(next(backends))
    after = held(before["threads"])
    spark.stop()
    return {name: (before[name], after[name]) for name in before}


def _output_cost(rounds: int, seconds: float) -> dict[str, float]:
    """How much slower ranks train that print 5 MB/s each, and what became of the lines."""
    from sparkdl_runner import DistributedRunner, RunConfig

    spark = start_spark("sparkdl_runner endurance benchmark", slots=RANKS)
    runner = DistributedRunner(
        num_proc=RANKS, backend="torch", run_config=RunConfig(driver_log_verbosity="all")
    )
    speeds, lines, seen, dropped = [], 0, 0, 0
    for _ in range(rounds):
        silent, _ = runner.run(_trains(seconds), lines_per_second=0)
        told, shown = io.StringIO(), _Counter()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(told):
            loud, printed = runner.run(_trains(seconds), lines_per_second=5000)
        speeds.append(loud / silent)
        lines += printed
        dropped += sum(map(int, re.findall(r"(\d+) lines of rank \d", told.getvalue())))
        seen += shown.lines
        if seen + dropped < lines:
            raise RuntimeError(f"{lines} lines were printed, {seen} shown, {dropped} counted")
    spark.stop()
    return {"speed": statistics.median(speeds), "lines": lines, "dropped_lines": dropped}


class _Counter(io.StringIO):
    """A terminal that takes all lines and keeps none. Ranks' lines come from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = 0
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        lines = text.count("\n")
        with self._lock:
            self.lines += lines
        return len(text)


def _trains(seconds: float) -> Callable[..., tuple[int, int]]:
    line = _LINE

    def train(lines_per_second: int) -> tuple[int, int]:
        """Steps that were made in the time, and lines that all ranks printed."""
        import sys
        import time

        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        torch.set_num_threads(1)
        weight = torch.randn(256, 256)
        began = time.monotonic()
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

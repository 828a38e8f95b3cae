"""Measures what is left by many runs in one session, and the cost of much output.

``make endurance N=40``: after so many runs the driver must have no more threads than before, and
every line of ranks that print 5 MB a second is shown or told as not shown. It prints the growth,
and the speed beside that of ranks that print nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
from benchmarks.ranks.faulty_ranks import RANKS, healthy_run

from sparkdl_runner.jobs.spark.session import start_spark

_SETTLING_SECONDS, _LINES_PER_SECOND = 5.0, 5000


def left_by(runs: int, backends: Iterator[str]) -> dict[str, float]:
    """The driver's growth with so many runs."""
    before = _held()
    for _ in range(runs):
        healthy_run(next(backends))
    after = _held(before["threads"])
    return {name: after[name] - before[name] for name in before}


def _held(threads: float = 0) -> dict[str, float]:
    gc.collect()
    # A thread of Spark's may be about to end, and longer so where the machine is busy.
    deadline = time.monotonic() + _SETTLING_SECONDS
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    process = psutil.Process()
    return {
        "file descriptors": process.num_fds(),
        "threads": threading.active_count(),
        "MB": process.memory_info().rss / 1e6,
    }


def train(seconds: float, lines_per_second: int) -> dict[str, float]:
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
    return {"steps/s": steps / seconds, "lines not shown": dropped, "of": printed}


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


def main() -> None:
    """Runs both, and exits with 1 if threads were left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="runs in a row")
    parser.add_argument("--rounds", type=int, default=3, help="of two trainings each")
    parser.add_argument("--seconds", type=float, default=5, help="of each training of a round")
    parser.add_argument("--backends", nargs="+", default=["horovod", "torch"])
    arguments = parser.parse_args()
    spark = start_spark("endurance", slots=RANKS)
    try:
        backends = itertools.cycle(arguments.backends)
        for _ in range(max(2, arguments.runs // 10)):  # Until the driver is warm.
            healthy_run(next(backends))
        left = left_by(arguments.runs, backends)
        print(f"{arguments.runs} runs left: {left}", flush=True)
        for _ in range(arguments.rounds):
            for lines in (_LINES_PER_SECOND, 0):
                told = train(arguments.seconds, lines)
                print(f"ranks that print {lines} lines/s: {told}", flush=True)
    finally:
        spark.stop()
    sys.exit(1 if left["threads"] > 0 else 0)


if __name__ == "__main__":
    main()

"""How long it takes from a call to its result, for this package and its two peers.

Every launcher runs the same work as two ranks on local[2]: import torch, initialise the backend,
one allreduce. Two figures: calls in a session that has seen this launcher before, interleaved so
that all launchers share the machine's good and bad moments; and the first call in a new session of
a new process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from sparkdl_runner.jobs.spark.session import start_spark

RANKS = 2
OURS = ("HorovodRunner", "DistributedRunner(torch)")
PEERS = ("horovod.spark.run", "TorchDistributor")
FIRST_CALL_TIMEOUT_SECONDS = 300
# A new session each takes its time; three tell a median.
MOST_FIRST_CALLS = 3

Launcher = Callable[[], Any]


# The work. Nested functions travel by value, so that no rank has to find this file. ------------


def _horovod_work() -> Callable[[], float]:
    def allreduce() -> float:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    return allreduce


def _torch_work() -> Callable[[], float]:
    def allreduce() -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        ones = torch.ones(1)
        dist.all_reduce(ones)
        dist.destroy_process_group()
        return ones.item()

    return allreduce


# The launchers. What they import is imported before the clock starts. --------------------------


def _horovod_runner() -> Launcher:
    from sparkdl_runner import HorovodRunner

    return lambda: HorovodRunner(np=RANKS).run(_horovod_work())


def _distributed_runner() -> Launcher:
    from sparkdl_runner import DistributedRunner

    return lambda: DistributedRunner(num_proc=RANKS, backend="torch").run(_torch_work())


def _horovod_spark_run() -> Launcher:
    import horovod.spark

    # Its ranks' addresses are logged at every start unless it is told to be silent.
    return lambda: horovod.spark.run(_horovod_work(), num_proc=RANKS, verbose=0)[0]


def _torch_distributor() -> Launcher:
    from pyspark.ml.torch.distributor import TorchDistributor

    def launch() -> Any:
        distributor = TorchDistributor(num_processes=RANKS, local_mode=False, use_gpu=False)
        return distributor.run(_torch_work())

    return launch


LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "HorovodRunner": _horovod_runner,
    "DistributedRunner(torch)": _distributed_runner,
    "horovod.spark.run": _horovod_spark_run,
    "TorchDistributor": _torch_distributor,
}


def timed_call(launch: Launcher) -> float:
    """Runs a launcher once.

    Returns:
        Seconds from the call to the result.

    Raises:
        RuntimeError: The ranks did not sum what they should have.
    """
    started = time.perf_counter()
    total = launch()
    seconds = time.perf_counter() - started
    if total != RANKS:
        raise RuntimeError(f"the allreduce of {RANKS} ones returned {total}")
    return seconds


def reason_of(error: BaseException) -> str:
    """The first line of what went wrong."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


# The two measurements --------------------------------------------------------------------------


def measure_warm(launchers: Sequence[str], repeat: int) -> dict[str, Any]:
    """Measures launchers in one session, in turns.

    Args:
        launchers: Their names.
        repeat: Measured calls of each, after one that is not measured.

    Returns:
        For each launcher a list of seconds, or the reason why there is none.
    """
    # Peers announce every start and end; the table is what is wanted.
    logging.disable(logging.INFO)
    spark = start_spark("launch benchmark", slots=RANKS)
    results: dict[str, Any] = {name: [] for name in launchers}
    ready: dict[str, Launcher] = {}
    names = list(launchers)
    for turn in range(repeat + 1):
        print(f"  turn {turn} of {repeat}" if turn else "  warm-up", flush=True)
        # What a slow one leaves behind could hit whoever comes next: everyone is first in turn.
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if isinstance(results[name], str):
                continue
            try:
                if name not in ready:
                    ready[name] = LAUNCHERS[name]()
                seconds = timed_call(ready[name])
            except Exception as error:
                results[name] = reason_of(error)
                continue
            if turn > 0:
                results[name].append(seconds)
    spark.stop()
    return results


def measure_first(launchers: Sequence[str], repeat: int) -> dict[str, Any]:
    """Measures each launcher's first call, in turns, each in a new process with a new session.

    Args:
        launchers: Their names.
        repeat: Measured calls of each.

    Returns:
        As ``measure_warm`` does.
    """
    results: dict[str, Any] = {name: [] for name in launchers}
    for turn in range(repeat):
        print(f"  turn {turn + 1} of {repeat}", flush=True)
        for name in launchers:
            if isinstance(results[name], list):
                result = first_call_in_a_child(name)
                results[name] = result if isinstance(result, str) else results[name] + result
    return results


def first_call_in_a_child(name: str) -> Any:
    """Runs ``measure_own_first`` in a new process: a list of one figure, or a reason."""
    try:
        child = subprocess.run(
            [sys.executable, __file__, name],
            capture_output=True,
            text=True,
            timeout=FIRST_CALL_TIMEOUT_SECONDS,
        )
        # Lines before the last are what the launcher itself prints.
        return json.loads(child.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired as error:
        return f"no result within {error.timeout} s"
    except ValueError:
        last_words = child.stderr.strip().rpartition("\n")[2]
        return f"exit code {child.returncode}: {last_words}"


def measure_own_first(name: str) -> Any:
    """The child's part of ``measure_first``: one call in a session in which nothing has run."""
    try:
        launch = LAUNCHERS[name]()
        spark = start_spark("launch benchmark", slots=RANKS)
        seconds = timed_call(launch)
    except Exception as error:
        return reason_of(error)
    spark.stop()
    return [seconds]


# What a person and a program get ---------------------------------------------------------------


def summarize(results: dict[str, Any]) -> dict[str, Any]:
    """Adds median and extremes, and for ours the ratio to the faster peer's median."""
    summary: dict[str, Any] = {}
    for name, result in results.items():
        if isinstance(result, str):
            summary[name] = {"unavailable": result}
        else:
            summary[name] = {
                "seconds": result,
                "median": statistics.median(result),
                "min": min(result),
                "max": max(result),
            }
    peers = [summary[name]["median"] for name in PEERS if "median" in summary.get(name, {})]
    for name in OURS:
        if peers and "median" in summary.get(name, {}):
            summary[name]["times_faster"] = min(peers) / summary[name]["median"]
    return summary


def show(title: str, summary: dict[str, Any]) -> None:
    """Prints one table."""
    print(f"\n{title:<26}{'median':>8}{'min':>8}{'max':>8}   than the faster peer")
    for name, figures in summary.items():
        if "unavailable" in figures:
            print(f"{name:<26} unavailable: {figures['unavailable']}")
            continue
        times = (f"{figures[key]:>6.2f} s" for key in ("median", "min", "max"))
        ratio = (
            f"   {figures['times_faster']:.1f} times faster" if "times_faster" in figures else ""
        )
        print(f"{name:<26}{''.join(times)}{ratio}")


def run(arguments: argparse.Namespace) -> int:
    """Runs both measurements, prints them, and writes them as JSON.

    Returns:
        The exit code: 1 if one of our own launchers gave no figure.
    """
    print("First calls, each in a new session:", flush=True)
    names = arguments.launchers
    first = summarize(measure_first(names, min(arguments.repeat, MOST_FIRST_CALLS)))
    print("Calls in one session:", flush=True)
    warm = summarize(measure_warm(names, arguments.repeat))
    show("first call in a session", first)
    show("later calls", warm)
    report = {
        "benchmark": "launch",
        "ranks": RANKS,
        "repeat": arguments.repeat,
        "cpus": len(os.sched_getaffinity(0)),
        "versions": {
            "python": platform.python_version(),
            **{
                package: metadata.version(package)
                for package in ("pyspark", "torch", "horovod")
                if importlib.util.find_spec(package)
            },
        },
        "first_call": first,
        "warm_call": warm,
    }
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\nWritten to {arguments.output}")
    ours = [figures[name] for figures in (first, warm) for name in OURS if name in figures]
    return int(any("unavailable" in one for one in ours))


def add_parser(benchmarks: Any) -> None:
    """Adds this benchmark to the command line."""
    parser = benchmarks.add_parser(
        "launch", help="from a call to its result, beside horovod.spark.run and TorchDistributor"
    )
    parser.add_argument(
        "--repeat", type=positive, default=5, help="measured calls of each (default: 5)"
    )
    parser.add_argument(
        "--launchers",
        nargs="+",
        choices=list(LAUNCHERS),
        default=list(LAUNCHERS),
        metavar="NAME",
        help=f"which of {', '.join(LAUNCHERS)} (default: all)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("benchmark-launch.json"), help="the JSON file"
    )
    parser.set_defaults(run=run)


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description="Time the first call of one launcher.")
    _parser.add_argument("launcher", choices=list(LAUNCHERS))
    print(json.dumps(measure_own_first(_parser.parse_args().launcher)))

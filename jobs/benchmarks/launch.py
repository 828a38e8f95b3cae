"""How long it takes from a call to its result, for this package and its peers.

Every launcher runs the same work as two ranks on local[2]: import torch, initialise the backend,
one allreduce. Two figures: calls in a session that has seen this launcher before, in turns; and the
first call in a new session of a new process. Of ours there are also calls that find the spares that
the call before has left, as in a notebook, and calls of ranks on this host, without Spark.

Ray's TorchTrainer has a cluster of Ray's own, on this host, which has started before the clock. It
is measured where Ray can be imported: ``pip install "ray[train]"``, which no lane has.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

import psutil

from benchmarks.figures import add_launchers, aligned, in_turns, positive, reason_of, summary
from benchmarks.processes import module_command, module_environment
from benchmarks.ray_train import allreduce_under_ray
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "from a call to its result, beside horovod.spark.run, TorchDistributor and Ray Train"
RANKS = 2
WITH_SPARES = ", spares"
ON_THIS_HOST = ("DistributedRunner(torch), this host", "HorovodRunner, this host")
OURS = (
    *("HorovodRunner", "DistributedRunner(torch)"),
    *("HorovodRunner, spares", "DistributedRunner(torch), spares"),
    *(name + spares for name in ON_THIS_HOST for spares in ("", WITH_SPARES)),
)
PEERS = ("horovod.spark.run", "TorchDistributor", "TorchTrainer (Ray)")
FIRST_CALL_TIMEOUT_SECONDS = 300
SPARE_SECONDS = 300.0
# How long spares may take to import torch, and how little they compute once they have.
READY_TIMEOUT_SECONDS = 120.0
LOOK_SECONDS = 0.5
IDLE_SECONDS = 0.02
# A new session each takes its time; three tell a median.
MOST_FIRST_CALLS = 3

Launcher = Callable[[], Any]


# The work. Nested functions travel by value, so that no rank has to find this file. ------------


def _horovod_work() -> Callable[[], float]:
    def allreduce() -> float:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return float(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())

    return allreduce


def _torch_work() -> Callable[[], float]:
    def allreduce() -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        ones = torch.ones(1)
        dist.all_reduce(ones)
        dist.destroy_process_group()
        return float(ones.item())

    return allreduce


# The launchers. What they import is imported before the clock starts. --------------------------


def _horovod_runner(np: int = RANKS, spare_seconds: float = 0) -> Launcher:
    from sparkdl_runner import HorovodRunner, RunConfig

    runner = HorovodRunner(np=np, run_config=RunConfig(spare_seconds=spare_seconds))
    return lambda: runner.run(_horovod_work())


def _distributed_runner(num_proc: int = RANKS, spare_seconds: float = 0) -> Launcher:
    from sparkdl_runner import DistributedRunner, RunConfig

    config = RunConfig(spare_seconds=spare_seconds)
    runner = DistributedRunner(num_proc=num_proc, backend="torch", run_config=config)
    return lambda: runner.run(_torch_work())


def _horovod_spark_run() -> Launcher:
    import horovod.spark

    # Its ranks' addresses are logged at every start unless it is told to be silent.
    return lambda: horovod.spark.run(_horovod_work(), num_proc=RANKS, verbose=0)[0]


def _torch_distributor() -> Launcher:
    from pyspark.ml.torch.distributor import TorchDistributor

    # It can be made only in a session.
    options: dict[str, Any] = {"num_processes": RANKS, "local_mode": False, "use_gpu": False}
    return lambda: TorchDistributor(**options).run(_torch_work())


LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "HorovodRunner": cache(_horovod_runner),
    "DistributedRunner(torch)": cache(_distributed_runner),
    "HorovodRunner, spares": cache(partial(_horovod_runner, RANKS, SPARE_SECONDS)),
    "DistributedRunner(torch), spares": cache(partial(_distributed_runner, RANKS, SPARE_SECONDS)),
    ON_THIS_HOST[0]: cache(partial(_distributed_runner, -RANKS)),
    ON_THIS_HOST[0] + WITH_SPARES: cache(partial(_distributed_runner, -RANKS, SPARE_SECONDS)),
    ON_THIS_HOST[1]: cache(partial(_horovod_runner, -RANKS)),
    ON_THIS_HOST[1] + WITH_SPARES: cache(partial(_horovod_runner, -RANKS, SPARE_SECONDS)),
    "horovod.spark.run": cache(_horovod_spark_run),
    "TorchDistributor": cache(_torch_distributor),
    "TorchTrainer (Ray)": cache(partial(allreduce_under_ray, RANKS)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument(
        "--repeat", type=positive, default=5, help="measured calls of each (default: 5)"
    )
    add_launchers(parser, LAUNCHERS)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures first calls, and then calls in one session."""
    # Peers announce every start and end; the table is what is wanted.
    logging.disable(logging.INFO)
    print("First calls, each in a new session:", flush=True)
    firsts = {
        name: partial(_first_call, name)
        for name in arguments.launchers
        if not name.endswith(WITH_SPARES)
    }
    repeat = min(arguments.repeat, MOST_FIRST_CALLS)
    first = in_turns(firsts, repeat, warm_up=False) if firsts else {}
    print("Calls in one session:", flush=True)
    spark = start_spark("launch benchmark", slots=RANKS)
    calls = {name: partial(_timed_call, name) for name in arguments.launchers}
    warm = in_turns(calls, arguments.repeat, warm_up=True)
    spark.stop()
    return {"ranks": RANKS, "first_call": _summaries(first), "warm_call": _summaries(warm)}


def _timed_call(name: str) -> float:
    """Seconds from a call to its result.

    Raises:
        RuntimeError: The ranks did not sum what they should have.
    """
    launch = LAUNCHERS[name]()
    if name.endswith(WITH_SPARES):
        launch()
    # Spares that an earlier launcher's call has left would take a core while they import torch.
    _await_spares(left=name.endswith(WITH_SPARES))
    started = time.perf_counter()
    total = launch()
    seconds = time.perf_counter() - started
    if total != RANKS:
        raise RuntimeError(f"the allreduce of {RANKS} ones returned {total}")
    return seconds


def _await_spares(*, left: bool) -> None:
    """Waits until the workers below this process do nothing any more: they are spares.

    Args:
        left: Whether the call before has left some, so that at least one has to appear.
    """
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    spent, now = -1.0, 0.0
    while time.monotonic() < deadline and ((left and not now) or now - spent > IDLE_SECONDS):
        spent = now
        time.sleep(LOOK_SECONDS)
        now = 0.0
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # It has just ended.
                if "sparkdl_runner.launch.worker" in one.cmdline():
                    now += sum(one.cpu_times()[:2])


def _first_call(name: str) -> float:
    """The same in a new process, which starts a session in which nothing has run."""
    child = subprocess.run(
        module_command("launch", name),
        env=module_environment(),
        capture_output=True,
        text=True,
        timeout=FIRST_CALL_TIMEOUT_SECONDS,
    )
    try:
        # Lines before the last are what the launcher itself prints.
        answer = json.loads(child.stdout.strip().rpartition("\n")[2])
    except ValueError:
        last_words = child.stderr.strip().rpartition("\n")[2]
        answer = f"exit code {child.returncode}: {last_words}"
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return float(answer)


def _answer_of_child(name: str) -> float | str:
    try:
        LAUNCHERS[name]()
        spark = start_spark("launch benchmark", slots=RANKS)
        seconds = _timed_call(name)
        spark.stop()
    except Exception as error:
        return reason_of(error)
    return seconds


def _summaries(found: Mapping[str, Any]) -> dict[str, Any]:
    """Adds median and extremes, and for ours the ratio to the fastest peer's median."""
    summaries = {name: summary(one) for name, one in found.items()}
    peers = [summaries[name]["median"] for name in PEERS if "median" in summaries.get(name, {})]
    for name in OURS:
        if peers and "median" in summaries.get(name, {}):
            summaries[name]["times_faster"] = min(peers) / summaries[name]["median"]
    return summaries


def table(report: Mapping[str, Any]) -> str:
    """Both kinds of calls."""
    first = _rows("first call in a session", report["first_call"])
    return aligned([*first, ("", "", ""), *_rows("later calls", report["warm_call"])])


def _rows(title: str, summaries: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(title, "median", "min", "max", "than the fastest peer")]
    for name, one in summaries.items():
        if "unavailable" in one:
            rows.append((name, f"unavailable: {one['unavailable']}"))
            continue
        times = one.get("times_faster")
        faster = f"{times:.1f} times faster" if times else ""
        rows.append((name, *(f"{one[key]:.2f} s" for key in ("median", "min", "max")), faster))
    return rows


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether all of our own launchers gave a figure."""
    parts = (report["first_call"], report["warm_call"])
    return not any("unavailable" in part.get(name, {}) for part in parts for name in OURS)


if __name__ == "__main__":
    print(json.dumps(_answer_of_child(sys.argv[1])))

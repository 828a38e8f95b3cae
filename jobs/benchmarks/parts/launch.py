"""How long it takes from a call to its result, for this package and its peers.

Every launcher runs the same work as two ranks on local[2]: import torch, initialise the backend,
one allreduce. Two figures: calls in a session that has seen this launcher before, in turns; and the
first call in a new session of a new process. Of ours there are also calls that find a spare, which
has imported torch before, as in a notebook, and, if chosen, of ranks on this host, without Spark.

Ray's TorchTrainer has a cluster of Ray's own, on this host, which has started before the clock. It
runs in the environment that ``python jobs/benchmark.py peers`` makes.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any

import psutil

from benchmarks.peers.ray_train import under_ray
from benchmarks.peers.spark_launchers import horovod_spark_run, torch_distributor
from benchmarks.ranks.processes import last_line, module_command, module_environment
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from sparkdl_runner.jobs.spark.session import start_spark
from sparkdl_runner.launch.driver.calls.spares import end_spare_workers

HELP = "from a call to its result, beside horovod.spark.run, TorchDistributor and Ray Train"
RANKS = 2
WITH_SPARES = ", spares"
FIRST_CALL_SECONDS, SPARE_SECONDS = 300.0, 300.0
"""The limit of a first call, with its process; and how long a spare waits for a call."""
READY_SECONDS, LOOK_SECONDS, IDLE_SECONDS = 120.0, 0.5, 0.02
"""How long spares may take to import torch, and how little they compute once they have."""
FIRST, LATER, SPARES = 5.0, 5.5, 25.0
"""Goals of first calls, of later ones, and of these with spares, beside the faster peer."""

Launcher = Callable[[], Any]


def _work(library: str) -> Callable[[], float]:
    """Makes the function of a rank. A nested one travels by value: no rank needs this file."""

    def allreduce() -> float:
        import torch

        ones = torch.ones(1)
        if library == "horovod":
            import horovod.torch as hvd

            hvd.init()
            return float(hvd.allreduce(ones, op=hvd.Sum).item())
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.all_reduce(ones)
        dist.destroy_process_group()
        return float(ones.item())

    return allreduce


def _runner(library: str, ranks: int, spare_seconds: float) -> Launcher:
    from sparkdl_runner import DistributedRunner, HorovodRunner, RunConfig

    config = RunConfig(spare_seconds=spare_seconds)
    if library == "horovod":
        return partial(HorovodRunner(np=ranks, run_config=config).run, _work(library))
    runner = DistributedRunner(num_proc=ranks, backend=library, run_config=config)
    return partial(runner.run, _work(library))


_RUNNERS = {"HorovodRunner": "horovod", "DistributedRunner(torch)": "torch"}
OURS: dict[str, Callable[[], Launcher]] = {
    f"{name}{where}{spares}": cache(partial(_runner, library, ranks, seconds))
    for where, ranks in (("", RANKS), (", this host", -RANKS))
    for name, library in _RUNNERS.items()
    for spares, seconds in (("", 0), (WITH_SPARES, SPARE_SECONDS))
}
RAY = "TorchTrainer (Ray)"
PEERS: dict[str, Callable[[], Launcher]] = {
    "horovod.spark.run": cache(partial(horovod_spark_run, RANKS, _work("horovod"))),
    "TorchDistributor": cache(partial(torch_distributor, RANKS, _work("torch"))),
    RAY: cache(partial(under_ray, RANKS)),
}
LAUNCHERS = {**OURS, **PEERS}
"""By name what makes a launcher, which imports what it needs: before the clock starts."""
BY_DEFAULT = [one for one in LAUNCHERS if "this host" not in one]
FIRST_BY_DEFAULT = ["HorovodRunner", "horovod.spark.run", "TorchDistributor"]

OPTIONS = (
    Option("repeat", 6, quick=1, help="calls of each in a session"),
    Option("first-calls", 6, quick=1, help="of each, in new sessions"),
    Option(
        "launchers",
        BY_DEFAULT,
        quick=["HorovodRunner", "HorovodRunner, spares", "horovod.spark.run"],
        choices=list(LAUNCHERS),
    ),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """First calls, and then calls in one session."""
    # Peers announce every start and end; the table is what is wanted.
    logging.disable(logging.INFO)
    names = arguments.launchers
    # Ray has no such session; its warm-up below is its first call.
    firsts = [one for one in names if WITH_SPARES not in one and one != RAY]
    firsts = FIRST_BY_DEFAULT if names == BY_DEFAULT else firsts
    goals = dict.fromkeys(_RUNNERS, FIRST)
    yield _case("first call in a session", _first_call, firsts, goals, turns=arguments.first_calls)
    spark = start_spark("launch benchmark", slots=RANKS)
    goals = dict.fromkeys(_RUNNERS, LATER) | {one + WITH_SPARES: SPARES for one in _RUNNERS}
    yield _case("later calls", _later_call, names, goals, turns=arguments.repeat, warm_ups=1)
    spark.stop()


def _case(name: str, call: Any, launchers: list[str], goals: Any, **turns: Any) -> Case:
    rays = {"beside all": "Ray's idle processes, from its warm-up on"} if RAY in launchers else {}
    return Case(
        name=name,
        figures={"call to result": Figure(unit="s", better="less", least_ratios=goals)},
        ours={one: partial(call, one) for one in launchers if one in OURS},
        peers={one: partial(call, one) for one in launchers if one in PEERS},
        facts={"ranks": RANKS, "time": "from a call in a session to its result", **rays},
        **turns,
    )


def _later_call(name: str) -> dict[str, float]:
    """A call that finds spares only where it is to find some."""
    if name.endswith(WITH_SPARES):
        LAUNCHERS[name]()()
        _await_spares()
    else:
        end_spare_workers()  # Of an earlier launcher's call: this one would take them.
    return _timed_call(name)


def _timed_call(name: str) -> dict[str, float]:
    """Seconds from a call to its result.

    Raises:
        RuntimeError: The ranks did not sum what they should have.
    """
    launch = LAUNCHERS[name]()
    started = time.perf_counter()
    total = launch()
    seconds = time.perf_counter() - started
    if total != RANKS:
        raise RuntimeError(f"the allreduce of {RANKS} ones returned {total}")
    return {"call to result": seconds}


def _await_spares() -> None:
    """Waits until the workers below this process do nothing any more: they are spares.

    Raises:
        TimeoutError: There are none, or they are not done with their imports.
    """
    deadline = time.monotonic() + READY_SECONDS
    spent, now = -1.0, 0.0
    while not now or now - spent > IDLE_SECONDS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no spares after {READY_SECONDS:g} s")
        spent = now
        time.sleep(LOOK_SECONDS)
        now = 0.0
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # It has just ended.
                if "sparkdl_runner.launch.worker" in one.cmdline():
                    now += sum(one.cpu_times()[:2])


def _first_call(name: str) -> dict[str, float]:
    """The same in a new process, which starts a session in which nothing has run.

    Raises:
        RuntimeError: It failed; with the last line of its errors.
        subprocess.TimeoutExpired: It took too long.
    """
    command = module_command("parts.launch", name)
    pipes: dict[str, Any] = {"capture_output": True, "text": True}
    done = subprocess.run(command, env=module_environment(), timeout=FIRST_CALL_SECONDS, **pipes)
    if done.returncode:
        raise RuntimeError(last_line(done.stderr))
    return {"call to result": float(done.stdout.splitlines()[-1])}


if __name__ == "__main__":
    LAUNCHERS[sys.argv[1]]()
    session = start_spark("launch benchmark", slots=RANKS)
    answer = _timed_call(sys.argv[1])
    session.stop()
    print(answer["call to result"])

"""The goodput of a training whose ranks are killed, here and under Ray Train.

The same training of two ranks, on local[2] and on a cluster of Ray's own on this host, saves a
checkpoint every few steps. The same faults strike both: SIGKILL of a rank, at a moment within the
first step after a number of steps has been made. Ray starts again at once; ours does so after an
attempt that saved a further checkpoint. Goodput is the time of the steps that counted, each once,
divided by the time from the call to its result. Ray is measured where the peers' environment is
made: ``jobs/benchmark.py peers``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.ray_train import under_ray
from benchmarks.ranks.killed_training import FACTS, RANKS, training
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "a training whose ranks are killed, beside Ray Train"
LOOK_SECONDS = 0.005
SECONDS = Figure(unit="s", better="less")
FIGURES = {
    "goodput": Figure(unit="", better="more"),
    "call to result": SECONDS,
    "steps made again": Figure(unit="", better="less"),
    "kill to next step": SECONDS,
    "slowest of the kills": SECONDS,
}

Fault = tuple[int, int, float]
"""After how many steps, which rank, and how many seconds later."""
Launcher = Callable[[dict[str, Any], int], Callable[[], Any]]


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """The same faults for the training of each launcher."""
    draw = random.Random(arguments.seed)
    after = sorted(draw.sample(range(1, arguments.steps), arguments.kills))
    faults = [
        (step, draw.randrange(RANKS), draw.uniform(0, arguments.step_seconds)) for step in after
    ]
    names, measure = arguments.launchers, partial(_measure, faults=faults, arguments=arguments)
    spark = start_spark("goodput benchmark", slots=RANKS)
    yield Case(
        name=f"{arguments.kills} kills in {arguments.steps} steps",
        figures=FIGURES,
        ours={one: partial(measure, OURS[one]) for one in names if one in OURS},
        peers={one: partial(measure, PEERS[one]) for one in names if one in PEERS},
        facts={**FACTS, "faults": faults, "kill to next step": "the median of the kills"},
    )
    spark.stop()


def _measure(launcher: Launcher, faults: list[Fault], arguments: argparse.Namespace) -> Any:
    """Lets the faults strike one training.

    Raises:
        RuntimeError: It has not made all its steps, or not all faults struck.
    """
    with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
        names = ("steps", "step_seconds", "every")
        given = {"folder": folder, **{name: getattr(arguments, name) for name in names}}
        launch = launcher(given, arguments.kills)
        struck_at: list[float] = []
        is_over = threading.Event()
        killer = threading.Thread(target=_kill, args=(Path(folder), faults, struck_at, is_over))
        killer.start()
        began = time.time()
        try:
            launch()
        finally:
            wall = time.time() - began
            is_over.set()
            killer.join()
        made = len({step for _, step, _, _ in _steps(Path(folder))})
        if (made, len(struck_at)) != (arguments.steps, arguments.kills):
            raise RuntimeError(f"{made} steps were made, and {len(struck_at)} faults struck")
        return figures_of(Path(folder), wall, struck_at)


def _kill(
    folder: Path, faults: list[Fault], struck_at: list[float], is_over: threading.Event
) -> None:
    struck: set[int] = set()
    try:
        for step, rank, delay in faults:
            # Of ranks that were started since the fault before, so that each ends a training.
            while not any(pid not in struck and made >= step for pid, made, _, _ in _steps(folder)):
                if is_over.wait(LOOK_SECONDS):
                    return
            time.sleep(delay)
            os.kill(int((folder / f"pid-{rank}").read_text()), signal.SIGKILL)
            struck_at.append(time.time())
            struck |= {pid for pid, _, _, _ in _steps(folder)}
    finally:
        (folder / "all-struck").touch()  # The training waits for it.


def _steps(folder: Path) -> list[tuple[int, int, float, float]]:
    """Rank 0's steps so far: the process that made each, its number, begin and end."""
    file = folder / "steps-0"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    found = [line.split() for line in lines if line.endswith("\n")]
    return [(int(pid), int(step), float(one), float(two)) for pid, step, one, two in found]


def figures_of(folder: Path, wall: float, struck_at: list[float]) -> dict[str, float]:
    """The figures of one training, from the steps that rank 0 wrote down.

    Args:
        folder: Where that is.
        wall: From the call to its result, in seconds.
        struck_at: When each fault struck.
    """
    steps = _steps(folder)
    counted = {step: end - begin for _, step, begin, end in steps}
    begins: dict[int, float] = {}
    for pid, _, begin, _ in steps:
        begins.setdefault(pid, begin)
    again = [min(one for one in begins.values() if one > at) - at for at in struck_at]
    return {
        "goodput": sum(counted.values()) / wall,
        "call to result": wall,
        "steps made again": len(steps) - len(counted),
        "kill to next step": statistics.median(again),
        "slowest of the kills": max(again),
    }


# The launchers. What they import, and their clusters, are there before the clock starts. ---------


def _distributed_runner(given: dict[str, Any], kills: int) -> Callable[[], Any]:
    from sparkdl_runner import DistributedRunner, RunConfig

    config = RunConfig(max_restarts=kills, tracking=False)
    runner = DistributedRunner(num_proc=RANKS, backend="torch", run_config=config)
    return lambda: runner.run(training(under_ray=False), given)


OURS: dict[str, Launcher] = {"DistributedRunner": _distributed_runner}
PEERS: dict[str, Launcher] = {"TorchTrainer (Ray)": partial(under_ray, RANKS)}

OPTIONS = (
    Option("kills", 6, quick=2),
    Option("steps", 200, quick=60),
    Option("step-seconds", 0.1, help="the least that one takes"),
    Option("every", 10, help="steps between checkpoints"),
    Option("seed", 0, type=int, help="of the faults"),
    Option("launchers", [*OURS, *PEERS], quick=[*OURS], choices=[*OURS, *PEERS]),
)

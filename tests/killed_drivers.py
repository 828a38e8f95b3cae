"""Kills the drivers of named trainings at random moments.

``make killed-drivers N=20``: the same command is given again after each kill. The weights at its
end must be those of a training that nobody disturbed, bit for bit, and its MLflow run must be one,
with each step's metric once.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.ranks.killed_training import RANKS, training
from benchmarks.ranks.processes import last_line, module_environment

_EVERY = 5  # Steps between two checkpoints.
_STEP_SECONDS = 0.1  # The least that one takes.


class Killed:
    """Trainings of one MLflow store, each with a folder and a name of its own.

    Args:
        folder: Where these are.
        steps: Of each training.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        self._weights = self._finish("undisturbed")["weights"]

    def is_right(self, name: str, after: float) -> bool:
        """Kills the driver so many seconds after the first step, and gives the command again.

        Raises:
            RuntimeError: The driver had ended before, or the second command failed.
        """
        with self._start(name) as killed:
            while not (self._folder / name / "steps-0").exists() and killed.poll() is None:
                time.sleep(0.05)
            time.sleep(after)
            killed.send_signal(signal.SIGKILL)
        if killed.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the driver ended with exit code {killed.returncode} before")
        began = time.monotonic()
        ended = self._finish(name)
        took = f"{time.monotonic() - began:.1f} s from step {ended['first']} on"
        has_weights, is_logged_once = ended["weights"] == self._weights, self._is_logged_once(name)
        print(
            f"{name}: killed after {after:.2f} s, {took}: {has_weights=}, {is_logged_once=}",
            flush=True,
        )
        return has_weights and is_logged_once

    def _start(self, name: str) -> subprocess.Popen[str]:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        (folder / "all-struck").touch()
        given = {"folder": str(folder), "steps": self._steps, "step_seconds": _STEP_SECONDS}
        return subprocess.Popen(
            [sys.executable, __file__, json.dumps({**given, "every": _EVERY}), name],
            env=module_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,  # MLflow puts artifacts there.
        )

    def _finish(self, name: str) -> Any:
        """Gives the command, and returns what it says at its end."""
        ended = self._start(name)
        out, problem = ended.communicate()
        if ended.returncode:
            raise RuntimeError(last_line(problem))
        return json.loads(out.splitlines()[-1])

    def _is_logged_once(self, name: str) -> bool:
        """Whether there is one run of this name, with each step's metric once."""
        import mlflow

        client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{self._folder}/mlflow.db")
        runs = client.search_runs(["0"], filter_string=f"run_name = '{name}'")
        steps = [
            sorted(point.step for point in client.get_metric_history(one.info.run_id, "loss"))
            for one in runs
        ]
        return steps == [list(range(1, self._steps + 1))]


def _train(given: dict[str, Any], name: str) -> None:
    """The driver: a named training on this host, which prints what its rank 0 returned."""
    from sparkdl_runner import DistributedRunner, RunConfig
    from sparkdl_runner.tracking import Tracking

    store = f"sqlite:///{Path(given['folder']).parent}/mlflow.db"
    tracking = Tracking(tracking_uri=store, report=False, system_metrics=False)
    runner = DistributedRunner(num_proc=-RANKS, run_config=RunConfig(name=name, tracking=tracking))
    print(json.dumps(runner.run(training(under_ray=False), given)), flush=True)


def main() -> None:
    """Kills so many drivers, and exits with 1 if something was not right after one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="trainings, each killed once")
    parser.add_argument("--steps", type=int, default=60, help="of each")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="killed-drivers-") as folder:
        killed = Killed(Path(folder), arguments.steps)
        wrong = 0
        for number in range(1, arguments.kills + 1):
            after = draw.uniform(0, (arguments.steps - 1) * _STEP_SECONDS)
            wrong += not killed.is_right(f"training-{number}", after)
    print(f"{arguments.kills} trainings, {wrong} of them wrong", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        _train(json.loads(sys.argv[1]), sys.argv[2])
    else:
        main()

"""The life of a named training: its driver is killed at random moments.

The same command is given again after each kill. The weights at its end must be those of a training
that nobody disturbed, bit for bit, and its MLflow run must be one, with each step's metric once:
then ``right`` is 1.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.ranks.killed_training import FACTS
from benchmarks.ranks.processes import last_line, module_command, module_environment
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option

HELP = "kill the driver of a named training, and start it again"
EVERY = 5
"""Steps between two checkpoints."""

OPTIONS = (
    Option("kills", 8, quick=1, help="trainings that are killed once each"),
    Option("steps", 60, quick=30),
    Option("step-seconds", 0.1, help="the least that one takes"),
    Option("seed", 0, type=int, help="of the moments"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Runs one training undisturbed, and then others that are killed."""
    with tempfile.TemporaryDirectory(prefix="life-") as folder:
        yield Case(
            name="the driver is killed once",
            figures={
                "right": Figure(unit="", better="more", bound=1),
                "second call to result": Figure(unit="s", better="less"),
                "went on from step": Figure(unit="", better="more"),
            },
            ours={"ours": _Killed(Path(folder), arguments).measure},
            turns=arguments.kills,
            turns_repeat=False,
            facts={**FACTS, "steps": arguments.steps, "steps between checkpoints": EVERY},
        )


class _Killed:
    """Trainings of one MLflow store, each with a folder and a name of its own."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self._folder = folder
        self._steps: int = arguments.steps
        self._step_seconds: float = arguments.step_seconds
        self._draw = random.Random(arguments.seed)
        self._numbers = count(1)
        self._weights = self._finish("undisturbed")["weights"]

    def measure(self) -> dict[str, float]:
        """Kills the driver between the first step and the last, and gives the command again.

        Raises:
            RuntimeError: The driver had ended before, or the second command failed.
        """
        name = f"life-{next(self._numbers)}"
        after = self._draw.uniform(0, (self._steps - 1) * self._step_seconds)
        with self._start(name) as killed:
            while not (self._folder / name / "steps-0").exists() and killed.poll() is None:
                time.sleep(0.05)
            time.sleep(after)
            killed.send_signal(signal.SIGKILL)
        if killed.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the driver ended with exit code {killed.returncode} before")
        began = time.monotonic()
        ended = self._finish(name)
        seconds = time.monotonic() - began
        has_weights, is_logged_once = ended["weights"] == self._weights, self._is_logged_once(name)
        if not (has_weights and is_logged_once):
            print(f"  killed after {after:.2f} s: {has_weights=}, {is_logged_once=}", flush=True)
        return {
            "right": float(has_weights and is_logged_once),
            "second call to result": seconds,
            "went on from step": ended["first"],
        }

    def _start(self, name: str) -> subprocess.Popen[str]:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        (folder / "all-struck").touch()
        given = {"folder": str(folder), "steps": self._steps, "step_seconds": self._step_seconds}
        return subprocess.Popen(
            module_command("ranks.killed_training", json.dumps({**given, "every": EVERY}), name),
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

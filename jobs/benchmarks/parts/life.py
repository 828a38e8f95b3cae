"""The life of a named training: its driver is killed at random moments.

The same command is given again after each kill. The weights at its end must be those of a training
that nobody disturbed, bit for bit, and its MLflow run must be one, with each step's metric once.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.ranks.processes import module_command, module_environment

HELP = "kill the driver of a named training, and start it again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--kills", type=int, default=20, help="trainings that are killed once each")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=0.3, help="the least that one takes")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs one training undisturbed, and then others that are killed.

    Returns:
        For each killed training, whether it ended as the undisturbed one did.
    """
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="life-") as folder:
        expected = _finish(folder, arguments)
    trainings = []
    for _ in range(arguments.kills):
        with tempfile.TemporaryDirectory(prefix="life-") as folder:
            # Between its first step and its last: no step takes less.
            after = draw.uniform(0, (arguments.steps - 1) * arguments.step_seconds)
            killed = _start(folder, arguments)
            _wait_for_first_step(folder, killed)
            time.sleep(after)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            again = time.monotonic()
            ended = _finish(folder, arguments)
            trainings.append(
                {
                    "killed_after_s": round(after, 2),
                    "was_running": killed.returncode == -signal.SIGKILL,
                    "restored_step": ended["first"],
                    "again_s": round(time.monotonic() - again, 2),
                    "problem": ended.get("problem"),
                    "same_weights": ended["weights"] == expected["weights"],
                    **_in_mlflow(folder, arguments.steps),
                }
            )
            print(json.dumps(trainings[-1]), flush=True)
    return {"results": trainings}


def table(report: dict[str, Any]) -> str:
    """The report for a person."""
    right = sum(map(_is_right, report["results"]))
    steps = [one["restored_step"] for one in report["results"] if not one["problem"]]
    return (
        f"{right} of {len(report['results'])} killed trainings ended with the weights of an "
        "undisturbed one, bit for bit, in one MLflow run with each step's metric once. They went "
        f"on from steps {', '.join(map(str, sorted(steps)))} of {report['settings']['steps']}."
    )


def is_good(report: dict[str, Any]) -> bool:
    """Whether all of them did."""
    return all(map(_is_right, report["results"]))


def _is_right(one: dict[str, Any]) -> bool:
    is_one_run = one["runs"] == 1 and not one["missing"] and not one["twice"]
    return one["was_running"] and not one["problem"] and one["same_weights"] and is_one_run


def _wait_for_first_step(folder: str, training: subprocess.Popen[str]) -> None:
    while not Path(f"{folder}/checkpoints-begun").exists() and training.poll() is None:
        time.sleep(0.05)


def _start(folder: str, arguments: argparse.Namespace) -> subprocess.Popen[str]:
    given = [folder, str(arguments.steps), str(arguments.step_seconds)]
    return subprocess.Popen(
        module_command("ranks.life_training", *given),
        env=module_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Gives the command, and returns what it says at its end."""
    ended = _start(folder, arguments)
    out, problem = ended.communicate()
    if ended.returncode:
        return {"first": None, "weights": None, "problem": problem[-2000:]}
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def _in_mlflow(folder: str, steps: int) -> dict[str, Any]:
    """How many runs there are, and which steps of the metric are missing or there twice."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{Path(folder)}/mlflow.db")
    runs = client.search_runs(["0"])
    found = [point.step for point in client.get_metric_history(runs[0].info.run_id, "loss")]
    return {
        "runs": len(runs),
        "missing": sorted(set(range(1, steps + 1)) - set(found)),
        "twice": sorted({step for step in found if found.count(step) > 1}),
    }

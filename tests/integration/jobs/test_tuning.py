"""Searches as they are called: pruned, ended by a time limit, killed and called again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processes import wait_until_gone

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

# Trials that are to be killed do not end by themselves: those after the first one while there is a
# file "holds", and each that is worse than the first one, which is to be pruned.
FUNCTION = """
import os
import time
from contextlib import suppress
from pathlib import Path

from sparkdl_runner.tracking import log_metrics


def train(x, steps=30):
    with suppress(FileExistsError):
        os.symlink(str(x), FOLDER / "first")
    first = float(os.readlink(FOLDER / "first"))
    while x != first and (FOLDER / "holds").exists():
        time.sleep(0.1)
    (FOLDER / "has begun").touch()
    for step in range(steps if x <= first else 6000):
        log_metrics(step, height=x)
        time.sleep(0.1)
    return {"height": x}
"""
# The killed driver's heartbeat must be over before the next one comes. Time limits count from the
# first step, before which a busy machine may take any time.
SEARCH = """
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from sparkdl_runner.base import time_limits
from sparkdl_runner.jobs import tune
from sparkdl_runner.jobs.parsing import command
from sparkdl_runner.jobs.tuning import study


class TimerFromTheFirstStep(threading.Timer):
    def run(self):
        while not Path("has begun").exists() and not self.finished.is_set():
            time.sleep(0.05)
        super().run()


time_limits.threading = SimpleNamespace(**{**vars(threading), "Timer": TimerFromTheFirstStep})
study.HEARTBEAT_SECONDS, study.LOST_SECONDS = 1, 2
sys.exit(command.main(tune.JOB, sys.argv[1:]))
"""


def search(folder: Path, more: str = "", **changes: Any) -> list[str]:
    """A command that searches on two local ranks, which do without torch."""
    (folder / "bowl.py").write_text(f"{FUNCTION}\n\nFOLDER = Path({str(folder)!r})\n")
    (folder / "search.py").write_text(SEARCH)
    tune = {
        "metric": "height",
        "direction": "minimize",
        "trials": 4,
        "storage": f"sqlite:///{folder}/study.db",
        "study_name": "bowls",
        "sampler": "{class: optuna.samplers:GridSampler, search_space: {x: [1, 5]}}",
        "search_space": "{x: {low: 1, high: 9}}",
        **changes,
    }
    lines = [f"  {name}: {value}" for name, value in tune.items()]
    (folder / "tune.yaml").write_text(
        f"""
function: bowl:train
backend: horovod
num_proc: -2
tracking: {{experiment: bowls, run_name: search, tracking_uri: "sqlite:///{folder}/mlflow.db"}}
{more}
tune:
"""
        + "\n".join(lines)
    )
    return [sys.executable, "search.py", "--config", "tune.yaml"]


def runs(folder: Path) -> list[Any]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("bowls")
    assert experiment is not None
    return sorted(
        client.search_runs([experiment.experiment_id]), key=lambda run: run.info.start_time
    )


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, new_store: Callable[[Path], str]) -> None:
    new_store(tmp_path)


def test_a_killed_search_goes_on_with_its_study_and_prunes(tmp_path: Path, no_torch: str) -> None:
    environment = {**os.environ, "PYTHONPATH": no_torch}
    pruner = "{class: optuna.pruners:MedianPruner, n_startup_trials: 1}"
    sampler = "{class: optuna.samplers:BruteForceSampler, seed: 3}"
    changes = {"trials": 3, "pruner": pruner, "sampler": sampler}
    command = search(tmp_path, **changes, search_space="{x: {choices: [1, 5, 9]}}")
    where: dict[str, Any] = {"cwd": tmp_path, "env": environment}
    (tmp_path / "holds").touch()
    with (tmp_path / "first.log").open("w") as log:
        first = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **where)
        deadline = time.monotonic() + 400
        while "(trial 1): " not in (told := (tmp_path / "first.log").read_text()):
            assert first.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert wait_until_gone("sparkdl_runner.launch.worker")
    (tmp_path / "holds").unlink()
    time.sleep(2.5)  # Its heartbeat is old.

    second = subprocess.run(command, capture_output=True, text=True, check=False, **where)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "2 trials, 1 at a time" in second.stdout
    parent, *trials = runs(tmp_path)
    assert parent.info.status == "FINISHED", "one run for the whole study"
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}
    lost, *ended = trials[1:]
    assert lost.info.status == "KILLED", "the run of the lost trial does not run for ever"
    assert len(ended) == 2
    values = [float(run.data.params["x"]) for run in [trials[0], *ended]]
    assert sorted(values) == [1, 5, 9], "the lost trial was tried again"
    for run, value in zip([trials[0], *ended], values, strict=True):
        # Of whatever is worse than the first one nothing but the first value is waited for.
        assert run.info.status == ("KILLED" if value > values[0] else "FINISHED")
    assert float(parent.data.tags["best.x"]) == 1 == parent.data.metrics["height"]
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    plots = [one.path for one in client.list_artifacts(parent.info.run_id, "study")]
    assert plots == ["study/parameters.png", "study/trials.png"]


def test_a_time_limit_ends_the_trial_that_runs(tmp_path: Path, no_torch: str) -> None:
    command = search(tmp_path, "hyperparameters: {steps: 3000}", time_limit_seconds=4, trials=2)
    environment = {**os.environ, "PYTHONPATH": no_torch}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "The search has reached its time limit of 4 s." in done.stdout
    assert "No trial has ended with a value" in done.stderr
    parent, trial = runs(tmp_path)
    assert (parent.info.status, trial.info.status) == ("FAILED", "KILLED")

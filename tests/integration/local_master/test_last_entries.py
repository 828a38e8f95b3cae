"""What rank 0 logged last is in the MLflow run, whichever rank then ends the training, and how."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl_runner import DistributedRunner, RunConfig, WorkerFailedError, current_world
from sparkdl_runner.tracking import Tracking

pytestmark = pytest.mark.integration
POINTS = 50


def log_and_fail(folder: Path, who: int, end: Callable[[], Any]) -> None:
    """The usual order of a training script: parameters, then what may fail."""
    import mlflow

    mlflow.log_params({"learning_rate": 0.1})
    for step in range(POINTS):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
    if current_world().rank == 0:
        (folder / "has logged").touch()
    while current_world().rank != who or not (folder / "has logged").exists():
        time.sleep(0.01)
    end()


def open_what_is_not_there() -> None:
    Path("/no/such/file").read_text()


def exit_with_one() -> None:
    sys.exit(1)


@pytest.mark.usefixtures("light_spark_ranks", "light_ranks")
@pytest.mark.parametrize(
    ("num_proc", "who", "end"),
    [
        pytest.param(-1, 0, open_what_is_not_there, marks=pytest.mark.one_lane),
        pytest.param(-2, 1, exit_with_one, marks=pytest.mark.one_lane),
        (2, 0, exit_with_one),
        pytest.param(2, 1, open_what_is_not_there, marks=pytest.mark.one_lane),
    ],
)
def test_what_was_logged_before_a_failure_is_in_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_store: Callable[[Path], str],
    num_proc: int,
    who: int,
    end: Callable[[], Any],
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    store = new_store(tmp_path)
    runner = DistributedRunner(
        num_proc=num_proc,
        backend="horovod",
        run_config=RunConfig(tracking=Tracking(tracking_uri=store, report=False)),
    )
    with pytest.raises(WorkerFailedError) as caught:
        runner.run(log_and_fail, tmp_path, who, end)
    assert caught.value.rank == who
    client = MlflowClient(tracking_uri=store)
    run = client.get_run(runner.mlflow_run_id)
    assert (run.info.status, run.data.params["learning_rate"]) == ("FAILED", "0.1")
    points = client.get_metric_history(runner.mlflow_run_id, "loss")
    assert [(one.step, one.value) for one in points] == [
        (step, 1 / (step + 1)) for step in range(POINTS)
    ]
    assert "sparkdl_runner.lost_entries" not in run.data.tags

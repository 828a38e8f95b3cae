"""A train job with a name is tried again as it is, and goes on; by default with its job's name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

TRAINING = """
import os
import torch
from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.tracking import log_metrics

def train(checkpoint_url, steps):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with CheckpointManager(checkpoint_url) as checkpoints:
        restored = checkpoints.restore(model, optimizer)
        first = restored.step if restored else 0
        for step in range(first + 1, steps + 1):
            log_metrics(step, loss=1 / step)
            checkpoints.save(step, model, optimizer)
            if step == 2 and os.environ.get("DIES"):
                checkpoints.wait()
                raise ValueError("a defect")
    return f"from {first} to {steps}"
"""


def job(tmp_path: Path, *argv: str, code: int = 0, **environment: str) -> dict[str, Any]:
    """Runs the job, and returns its summary."""
    (tmp_path / "training.py").write_text(TRAINING)
    command = (
        *(sys.executable, "-m", "sparkdl_runner", "train", "--function", "training.py:train"),
        *("--num-proc", "-1", "--hyperparameters", "steps=4", "--checkpoint-url", "checkpoints"),
        *("--tracking", f"tracking_uri=sqlite:///{tmp_path}/mlflow.db", "report=false"),
    )
    done = subprocess.run(
        [*command, *argv],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if code == 0 else {}


def test_the_second_try_goes_on_and_the_third_trains_nothing(tmp_path, new_store):
    """The scheduler here is Airflow: its tries of a task share the graph's run."""
    new_store(tmp_path)
    airflow = {
        "AIRFLOW_CTX_DAG_ID": "shop",
        "AIRFLOW_CTX_TASK_ID": "train",
        "AIRFLOW_CTX_DAG_RUN_ID": "scheduled__2026-11-23T00:00:00+00:00",
    }
    job(tmp_path, code=1, DIES="1", **airflow)
    second = job(tmp_path, **airflow)
    assert second["returned"] == "from 2 to 4"
    third = job(tmp_path, **airflow)
    assert (third["returned"], third["run_id"]) == (second["returned"], second["run_id"])
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert folder.name.startswith("airflow-shop-train-scheduled__2026-11-23T00-00-00-00-00-")

"""The example as a person trains it: one command in an empty folder.

With Horovod; tests of the whole system train it with torch.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = [str(ROOT / "jobs" / "train.py"), "--example", "digits", "--num-proc", "2"]
EPOCHS = 10
QUIET = ("--run-config", "driver_log_verbosity=log_callback_only")
SETTINGS = ("--tracking", "experiment=digits", "--hyperparameters", f"epochs={EPOCHS}")

pytestmark = pytest.mark.integration

# What Spark 4 makes a full JDK say; nothing can silence it.
JVM_WARNING = "WARNING: Using incubator modules: jdk.incubator.vector"
# The notices of a start that takes long, as on a busy machine: of Spark's more than 3 s, and of the
# ranks' more than 8 s after that.
SLOW_START = re.compile(
    r"sparkdl_runner: (waiting until 2 slots are free at once\. No other job of this application "
    r"uses any: Spark has yet to offer them\.|\d of 2 ranks ha(s|ve) not reached the driver at .*"
    r"|all ranks have reached the driver now\.)"
)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """mlflow and torch set variables when they read a model; here, only for the test."""
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)


def run_job(
    folder: Path, *arguments: str, launcher: tuple[str, ...] = (sys.executable,)
) -> subprocess.CompletedProcess[str]:
    """Runs the job in ``folder``, with everything temporary kept inside it."""
    environment = {name: value for name, value in os.environ.items() if "MLFLOW" not in name}
    temporary = folder / "temporary"
    temporary.mkdir()
    environment |= {"TMPDIR": str(temporary), "PYSPARK_PYTHON": sys.executable}
    environment.pop("SPARK_LOCAL_IP", None)  # A person has none.
    return subprocess.run(
        [*launcher, *JOB, *SETTINGS, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def check_run(summary: dict[str, Any]) -> None:
    """Looks at the run in MLflow as someone would who knows no more than the job's last line."""
    import mlflow
    import pandas as pd
    from sklearn.datasets import load_digits

    client = mlflow.MlflowClient(tracking_uri=summary["tracking_uri"])
    run = client.get_run(summary["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["sparkdl_runner.backend"] == "horovod"
    assert run.data.params["world_size"] == "2"
    assert run.data.params["epochs"] == str(EPOCHS)
    rows = int(run.data.params["train_rows"]) + int(run.data.params["test_rows"])
    assert rows == 1797
    check_steps(client, run, EPOCHS)
    accuracy = summary["returned"]["accuracy"]
    assert run.data.metrics["accuracy"] == accuracy
    assert run.data.metrics["samples_per_second"] > 0
    shown = {name for name in run.data.tags if not name.startswith("mlflow.")}
    assert not {name for name in shown if "driver_alive" in name or "checkpoint" in name}
    assert {one.dataset.name for one in run.inputs.dataset_inputs} == {"train_data", "test_data"}

    (output,) = run.outputs.model_outputs
    page = client.get_logged_model(output.model_id)
    assert page.params["epochs"] == str(EPOCHS)
    assert {one.key: one.value for one in page.metrics}["accuracy"] == accuracy
    assert page.tags["mlflow.source.name"] == "sparkdl_runner.examples.digits", "its function"
    assert {"sparkdl_runner.data.train_data", "sparkdl_runner.data.test_data"} <= page.tags.keys()
    model_uri = f"models:/{output.model_id}"
    mlflow.set_tracking_uri(summary["tracking_uri"])
    info = mlflow.models.get_model_info(model_uri)
    model = mlflow.pyfunc.load_model(model_uri)
    assert str(info.signature.inputs) == "['features': Array(double) (required)]"
    assert str(info.signature.outputs) == "[Array(float) (required)]"
    assert {len(row) for row in model.input_example["features"]} == {64}
    # The weights are the trained ones, in any number of rows.
    digits, labels = load_digits(return_X_y=True)
    predicted = model.predict(pd.DataFrame({"features": list(digits)})).argmax(axis=1)
    assert (predicted == labels).mean() > 0.95


def check_steps(client: Any, run: Any, epochs: int) -> None:
    """Every step is there once."""
    each = int(run.data.params["steps_per_epoch"])
    for name, steps in (
        ("loss", range(1, epochs * each + 1)),
        ("accuracy", range(each, epochs * each + 1, each)),
    ):
        history = client.get_metric_history(run.info.run_id, name)
        assert [metric.step for metric in history] == list(steps)


def spark_submit(master: str) -> tuple[str, ...]:
    """The command that comes with the installed pyspark."""
    import pyspark

    return (str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master)


def check_summary(folder: Path, line: str) -> dict[str, Any]:
    """Looks at the job's last line and, by it, at the run."""
    summary: dict[str, Any] = json.loads(line)
    assert set(summary) == {"run_id", "tracking_uri", "seconds", "returned"}
    assert summary["returned"]["accuracy"] >= 0.95
    assert summary["returned"]["attempts"] == 1
    assert summary["seconds"] > 0
    assert summary["tracking_uri"] == f"sqlite:///{folder}/mlflow.db"
    check_run(summary)
    for left in ("sparkdl_runner-run-*", "sparkdl_runner-rank-*", "*mlflow*/*"):
        assert not list((folder / "temporary").glob(left))
    return summary


def listening() -> set[str]:
    """The addresses on which this process's descendants listen now."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found |= {
                one.laddr.ip
                for one in child.net_connections("inet")
                if one.status == psutil.CONN_LISTEN
            }
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, set[str]]:
    """The folder of a job that nothing happens to, what it says, and where it listens meanwhile."""
    folder, addresses = tmp_path_factory.mktemp("undisturbed"), set()
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(run_job, folder, "--backend", "horovod", *QUIET)
        while not wait([job], timeout=1).done:
            addresses |= listening()
    return folder, job.result(), addresses


def test_other_hosts_reach_none_of_it_and_other_users_do_not_read_it(
    undisturbed: tuple[Path, Any, set[str]],
) -> None:
    folder, _, addresses = undisturbed
    assert addresses
    assert all(ip_address(one.removeprefix("::ffff:")).is_loopback for one in addresses), addresses
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    del modes["temporary"]
    assert modes == {"mlflow.db": 0o600, "mlruns": 0o700}


def test_trains_and_tracks(undisturbed: tuple[Path, Any, set[str]]) -> None:
    folder, done, _ = undisturbed
    assert done.returncode == 0, done.stderr
    told = [
        line
        for line in done.stderr.splitlines()
        if line != JVM_WARNING and not SLOW_START.fullmatch(line)
    ]
    first, *others = told
    assert first == "sparkdl_runner: 2 ranks on 1 host started"
    assert all(line.startswith("sparkdl_runner: step ") for line in others)
    *lines, last = done.stdout.splitlines()
    for epoch in range(1, EPOCHS + 1):
        assert any(f"epoch {epoch:2} of {EPOCHS}" in line for line in lines)
    summary = check_summary(folder, last)
    assert any(f"mlflow ui --backend-store-uri {summary['tracking_uri']}" in line for line in lines)
    assert any(line.endswith(f"/runs/{summary['run_id']}") for line in lines)
    for phase in ("check settings", "start Spark", "convert data", "train", "stop Spark", "all"):
        assert any(line.startswith(f"{phase} ") for line in lines), phase


@pytest.mark.one_lane
def test_ends_with_the_same_accuracy_after_a_rank_was_killed_half_way(
    undisturbed: tuple[Path, Any, set[str]], tmp_path: Path
) -> None:
    import mlflow

    chaos = ("--hyperparameters", "chaos=true", "--checkpoint-url", str(tmp_path / "checkpoints"))
    restart = ("--run-config", "max_restarts=1", "restart_backoff_seconds=1")
    launcher = spark_submit("local[2]")
    done = run_job(tmp_path, "--backend", "horovod", *chaos, *restart, launcher=launcher)
    # Which passes on both of the job's streams as its own stdout.
    assert done.returncode == 0, done.stdout
    killed, quiet = (json.loads(one.stdout.splitlines()[-1]) for one in (done, undisturbed[1]))
    assert "was ended by SIGKILL" in done.stdout
    assert "attempt 1 goes on after step 50" in done.stdout
    assert killed["returned"] == {**quiet["returned"], "attempts": 2}
    client = mlflow.MlflowClient(tracking_uri=killed["tracking_uri"])
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    check_steps(client, run, EPOCHS)


@pytest.mark.one_lane
def test_ranks_without_a_slot_are_refused_before_there_is_a_run(tmp_path: Path) -> None:
    done = run_job(tmp_path, launcher=spark_submit("local[1]"))
    assert done.returncode == 2
    # spark-submit passes on both of the job's streams as its own stdout.
    assert "train: 2 ranks need 2 task slots at once" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "mlflow.db").exists()

"""What people do with all of it: submit a training, lose a process, score a table, look at MLflow.

A standalone Spark whose daemons are processes of their own, a real MLflow server, first on SQLite
and then on PostgreSQL, jobs that are submitted as on any cluster, and a browser.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlflow
import numpy as np
import packed_forms
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from benchmarks.servers.tracking_server import TrackingServer
from mlflow_pages import RunPages
from postgres import Postgres
from standalone_cluster import StandaloneCluster, environment_for
from submitting import ROOT, Submitted

from browser import Browser
from processes import workers

pytestmark = [pytest.mark.integration, pytest.mark.one_lane, pytest.mark.timeout(900)]

EPOCHS = 40
# So many steps that a rank can be killed between the first checkpoint and the end.
HYPERPARAMETERS = {"epochs": EPOCHS, "batch_size": 32, "learning_rate": 0.003}
PARAMETERS = {"epochs": str(EPOCHS), "world_size": "2"}
# A model and its version are two links beside each other.
REGISTERED = "digits\nv1"
METRICS = ("loss", "accuracy", "samples_per_second")


@dataclass(frozen=True, kw_only=True)
class Forms:
    """The project as it comes to a cluster."""

    archive: Path
    """A packed environment."""
    python: Path
    """Of that environment, unpacked."""
    bare_python: Path
    """Of one that has everything but this project."""
    wheel: Path


@pytest.fixture(scope="module")
def forms(place) -> Forms:
    archive = packed_forms.pack_environment(place)
    python = packed_forms.unpack(archive, place / "environment")
    bare_python = packed_forms.without_project(place / "environment", place / "bare")
    wheel = packed_forms.wheel_for_py_files(place)
    return Forms(archive=archive, python=python, bare_python=bare_python, wheel=wheel)


@pytest.fixture(scope="module")
def cluster(place) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(place / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def server(place) -> Iterator[TrackingServer]:
    folder = place / "sqlite"
    folder.mkdir()
    yield from served(TrackingServer(folder))


@pytest.fixture(scope="module")
def postgres_server(place) -> Iterator[TrackingServer]:
    database = Postgres()
    folder = place / "postgres"
    folder.mkdir()
    store = ("--backend-store-uri", database.url)
    try:
        database.start()
        yield from served(TrackingServer(folder, *store))
    finally:
        database.close()


def served(server: TrackingServer) -> Iterator[TrackingServer]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def browser(artifacts) -> Iterator[Browser]:
    browser = Browser(artifacts)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def trained(place, cluster, server, forms, artifacts) -> str:
    """A training in a packed environment, of which one rank's process is killed in the middle.

    Returns:
        The MLflow run's id.
    """
    config = place / "train.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "example": "digits",
                "backend": "torch",
                "num_proc": 2,
                "cache_url": (place / "conversions").as_uri(),
                "checkpoint_url": (place / "checkpoints").as_uri(),
                "hyperparameters": HYPERPARAMETERS,
                "run_config": {"max_restarts": 1, "restart_backoff_seconds": 1},
                "tracking": {
                    "tracking_uri": server.url,
                    "experiment": "digits",
                    "run_name": "packed",
                    "registered_model_name": "digits",
                    "alias": "champion",
                },
            }
        )
    )
    with Submitted(
        cluster,
        environment_for(place, driver=forms.python, executors="./environment/bin/python"),
        artifacts / "train.log",
        ["--archives", f"{forms.archive}#environment"],
        [str(ROOT / "jobs" / "train.py"), "--config", str(config)],
    ) as training:
        training.wait_until(lambda: has_checkpoint(place / "checkpoints"), "checkpoint")
        ranks = rank_processes()
        assert len(ranks) == 2
        # One on each of Spark's workers, and each in what that has unpacked.
        assert {executor_of(rank) for rank in ranks} == set(cluster.executors())
        for rank in ranks:
            assert Path(rank.cmdline()[0]).is_relative_to(cluster.folder), rank.cmdline()
        ranks[1].send_signal(signal.SIGKILL)
        output = training.succeed()
    assert "was ended by SIGKILL" in output
    assert "goes on after step" in output
    assert "registered as models:/digits/1, digits@champion" in output
    return the_only_run(server, "digits")


def has_checkpoint(folder: Path) -> bool:
    return any(folder.glob("**/step-*/**/manifest.json"))


def rank_processes() -> list[psutil.Process]:
    """The ranks' processes, without the guards beside them."""
    found = workers()
    return [one for one in found if one.ppid() not in {other.pid for other in found}]


def executor_of(rank: psutil.Process) -> psutil.Process:
    """The JVM that has started a rank."""
    return next(one for one in rank.parents() if one.name() == "java")


def the_only_run(server: TrackingServer, experiment: str) -> str:
    client = mlflow.MlflowClient(tracking_uri=server.url)
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return run.info.run_id


def check_one_run_of_two_attempts(server: TrackingServer, run_id: str, killed: str) -> None:
    """Whatever was lost, MLflow holds one run, each step of it once, and why it had to go on."""
    client = mlflow.MlflowClient(tracking_uri=server.url)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert PARAMETERS.items() <= run.data.params.items()
    tags = run.data.tags
    assert (tags["sparkdl_runner.num_proc"], tags["sparkdl_runner.max_restarts"]) == ("2", "1")
    assert tags["sparkdl_runner.attempt"] == "1"
    assert killed in tags["sparkdl_runner.attempt.0.ended_by"]
    assert tags["sparkdl_runner.attempt.1.ended_by"] == "all ranks returned"
    steps = [point.step for point in client.get_metric_history(run_id, "loss")]
    assert sorted(steps) == list(range(1, EPOCHS * int(run.data.params["steps_per_epoch"]) + 1))
    assert run.data.metrics["accuracy"] > 0.95
    version = client.get_model_version_by_alias("digits", "champion")
    assert (version.version, version.run_id) == ("1", run_id)


def test_a_training_in_a_packed_environment_goes_on_after_a_rank_is_killed(server, trained):
    check_one_run_of_two_attempts(server, trained, "was ended by SIGKILL")
    client = mlflow.MlflowClient(tracking_uri=server.url)
    # Rank 1 has nothing to say.
    assert [one.path for one in client.list_artifacts(trained, "logs")] == ["logs/rank_0"]
    logs = client.list_artifacts(trained, "logs/rank_0")
    assert [Path(one.path).name for one in logs] == [
        f"attempt-{attempt}-00.chunk.txt" for attempt in (0, 1)
    ]


@pytest.fixture(scope="module")
def digits(place) -> Path:
    """A table of all handwritten digits."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    table = pa.table({"features": list(pixels.astype("float32")), "label": labels})
    pq.write_table(table, place / "digits.parquet")
    return place / "digits.parquet"


def test_the_registered_model_scores_a_table_with_the_project_as_py_files(
    place, cluster, server, forms, trained, digits, artifacts
):
    bare = forms.bare_python
    with Submitted(
        cluster,
        environment_for(place, driver=bare, executors=str(bare)),
        artifacts / "score.log",
        ["--py-files", str(forms.wheel)],
        [
            str(ROOT / "jobs" / "score.py"),
            *(
                "--model",
                "models:/digits@champion",
                "--trust",
                "true",
                "--tracking-uri",
                server.url,
            ),
            *("--source", str(digits), "--output", str(place / "scored")),
        ],
    ) as scoring:
        scoring.succeed()
    scored = pq.read_table(place / "scored").to_pandas()
    assert len(scored) == 1797
    predicted = np.stack(scored["prediction"].to_list()).argmax(axis=1)
    accuracy = float((predicted == scored["label"]).mean())
    assert accuracy > 0.97


def test_the_pages_of_the_run_show_what_happened(server, trained, browser):
    pages = RunPages(browser, server.url, trained)
    run = mlflow.MlflowClient(tracking_uri=server.url).get_run(trained)

    overview = pages.overview("Finished", "2 ranks on 1 host, in 2 attempts.", REGISTERED)
    assert f"accuracy {run.data.metrics['accuracy']:.4g}" in overview, "its description says so"
    for name, value in PARAMETERS.items():
        assert f"{name}\n{value}\n" in overview, name
    for name in METRICS:
        assert f"\n{name}\n" in overview, name
    assert ".attempt.0.ended_by" in overview
    assert "was ended by SIGKILL" in overview

    charts = pages.metric_charts(*METRICS)
    for name in ("loss", "accuracy"):
        last = charts[name][-1]
        assert last == pytest.approx(run.data.metrics[name]), name
    assert len(charts["accuracy"]) == EPOCHS

    charts = pages.system_charts("cpu_utilization_percentage", "system_memory_usage_percentage")
    assert all(0 < value <= 100 for values in charts.values() for value in values)

    report = pages.artifact("report/summary.html", in_frame=True)
    assert "2 ranks on 1 host, in 2 attempts." in report
    assert "was ended by SIGKILL" in report
    assert "goes on after step" in pages.artifact("logs/rank_0/attempt-1-00.chunk.txt")
    assert "Attempt 0: " in pages.artifact("attempts/attempt-0.txt")
    assert "example: digits" in pages.artifact("config.yaml")


def test_the_same_on_postgresql_where_an_executor_is_lost(
    place, cluster, postgres_server, forms, browser, artifacts
):
    bare = forms.bare_python
    checkpoints = place / "checkpoints-2"
    url = postgres_server.url
    with Submitted(
        cluster,
        environment_for(place, driver=bare, executors=str(bare)),
        artifacts / "train-postgres.log",
        ["--py-files", str(forms.wheel)],
        [
            *(str(ROOT / "jobs" / "train.py"), "--example", "digits", "--num-proc", "2"),
            *("--backend", "horovod", "--hyperparameters"),
            *(f"{name}={value}" for name, value in HYPERPARAMETERS.items()),
            *("--checkpoint-url", checkpoints.as_uri()),
            *("--cache-url", (place / "conversions").as_uri()),
            *("--run-config", "max_restarts=1", "restart_backoff_seconds=1"),
            *("--tracking", f"tracking_uri={url}", "experiment=digits", "run_name=wheel"),
            *("registered_model_name=digits", "alias=champion"),
        ],
    ) as training:
        training.wait_until(lambda: has_checkpoint(checkpoints), "checkpoint")
        executor_of(rank_processes()[1]).send_signal(signal.SIGKILL)
        training.succeed()
    run_id = the_only_run(postgres_server, "digits")
    check_one_run_of_two_attempts(postgres_server, run_id, "host")
    pages = RunPages(browser, url, run_id, pictures="postgres-")
    assert ".attempt.0.ended_by" in pages.overview("Finished", REGISTERED)
    assert len(pages.metric_charts("accuracy")["accuracy"]) == EPOCHS

"""A training is called after the job that a scheduler runs."""

from __future__ import annotations

import sys

import pyspark
import pytest

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.training.job_name import _spark_application, job_name
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.launch.config import RunConfig

SETTINGS = {"function": "a:b", "hyperparameters": {"epochs": 3}, "num_proc": 2}


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABRICKS_RUNTIME_VERSION", "AIRFLOW_CTX_DAG_ID", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)


def in_airflow(monkeypatch: pytest.MonkeyPatch, run: str = "manual__2026") -> None:
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "shop ü")
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "train")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", run)


def name_of(**settings: object) -> str:
    found = job_name({**SETTINGS, **settings})
    assert found is not None
    RunConfig(name=found.name)
    return found.name


def test_without_a_job_there_is_no_name():
    assert job_name(SETTINGS) is None


def test_tries_of_a_task_share_a_name_and_nothing_else_does(monkeypatch):
    in_airflow(monkeypatch)
    name = name_of()
    assert name.startswith("airflow-shop-train-manual__2026-")
    # A second try may have more room, and other places.
    assert name_of(num_proc=8, run_config={"max_restarts": 3}, cache_url="/c") == name
    assert name_of(hyperparameters={"epochs": 4}) != name
    assert name_of(function="a:c") != name
    in_airflow(monkeypatch, "manual__2027")
    assert name_of() != name
    in_airflow(monkeypatch, "m" * 300)
    long = name_of()
    in_airflow(monkeypatch, "m" * 301)
    assert name_of() != long


def test_a_databricks_job_by_its_tags(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    tags = {"mlflow.databricks.jobID": "12", "mlflow.databricks.jobRunID": "34"}
    monkeypatch.setattr("mlflow.tracking.context.registry.resolve_tags", lambda: tags)
    assert name_of().startswith("databricks-12-34-")
    tags.clear()
    assert job_name(SETTINGS) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a b"}, r"it becomes a tag and a folder.*such as 'a-b'"),
        ({"name": "shop", "tracking": False}, "MLflow is not set up"),
        ({"name": "shop", "tracking": {"run_id": "1"}}, "give either name or tracking.run_id"),
    ],
)
def test_a_name_that_cannot_be_kept_is_refused(changes, told):
    with pytest.raises(ConfigError, match=told):
        load(TrainSettings, None, {**SETTINGS, **changes})


@pytest.mark.parametrize(
    ("given", "name"), [("nightly", "nightly"), ("train.py", None), ("", None), (None, None)]
)
def test_the_name_that_was_given_to_spark_submit(monkeypatch, given, name):
    assert _spark_application() is None
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(sys, "argv", ["/jobs/train.py", "--example", "digits"])
    monkeypatch.setattr(pyspark.SparkContext, "_ensure_initialized", lambda: None)
    monkeypatch.setattr(pyspark, "SparkConf", lambda: {"spark.app.name": given})
    assert _spark_application() == name

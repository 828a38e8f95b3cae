"""Which trainings take the name of a scheduler's job, and what a job's last line holds."""

from __future__ import annotations

import pytest

from sparkdl_runner.jobs.train import _short, named_after_its_job
from sparkdl_runner.jobs.training.settings import TrainSettings

FUNCTION = {"function": "a:b", "num_proc": 2}


@pytest.fixture(autouse=True)
def _in_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "shop")
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "train")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "r1")


def settings(**more: object) -> TrainSettings:
    return TrainSettings.model_validate({**FUNCTION, "tracking": {"experiment": "/e"}, **more})


def test_a_tracked_training_of_a_job_has_the_jobs_name(capsys: pytest.CaptureFixture[str]) -> None:
    named = named_after_its_job(settings())
    assert named.name is not None
    assert named.name.startswith("airflow-shop-train-r1-")
    assert not named.rerun_finished, "each run of the graph has a name of its own"
    assert capsys.readouterr().out == f"This training is called {named.name}, after its job.\n"


@pytest.mark.parametrize(
    "given", [{"name": "mine"}, {"tracking": {"run_id": "0" * 32}}, {"tracking": None}]
)
def test_who_names_it_or_keeps_no_run_is_left_alone(
    given: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = settings(**given)
    assert named_after_its_job(asked) is asked
    assert capsys.readouterr().out == ""


def test_without_a_job_there_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CTX_TASK_ID")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    asked = settings()
    assert named_after_its_job(asked) is asked


def test_the_last_line_holds_a_value_that_is_short_and_fits_json() -> None:
    assert _short({"loss": 0.5}) == {"loss": 0.5}
    assert _short("x" * 1998) == "x" * 1998
    for value in ("x" * 1999, object(), {1j}):
        assert _short(value) is None

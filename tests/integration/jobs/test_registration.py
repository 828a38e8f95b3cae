"""A job that died while it registered its model, and is called again."""

from __future__ import annotations

from typing import Any

import pytest

from sparkdl_runner.jobs.training.mlflow_run import REGISTERED_TAG, register

mlflow = pytest.importorskip("mlflow")

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def same(model_input: list[str]) -> list[str]:
    return model_input


@pytest.fixture
def run_id(tmp_path, monkeypatch) -> Any:
    """A run that has logged a model."""
    before = mlflow.get_tracking_uri()
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with mlflow.start_run() as run:
        log(run.info.run_id)
    yield run.info.run_id
    mlflow.set_tracking_uri(before)


def log(run_id: str) -> None:
    mlflow.pyfunc.log_model(name="model", python_model=same, pip_requirements=["mlflow"])


def test_a_model_is_registered_once_whenever_its_job_died(run_id, capsys):
    client = mlflow.MlflowClient()

    def versions() -> list[str]:
        return [one.version for one in client.search_model_versions("name = 'shop'")]

    register(run_id, "shop", "champion")
    assert [str(one) for one in versions()] == ["1"]
    # The job had died before it gave the alias.
    client.delete_registered_model_alias("shop", "champion")
    client.delete_tag(run_id, REGISTERED_TAG)
    register(run_id, "shop", "champion")
    assert [str(one) for one in versions()] == ["1"]
    assert str(client.get_model_version_by_alias("shop", "champion").version) == "1"
    # It is called once more after another training's model has become the champion.
    with mlflow.start_run() as other:
        log(other.info.run_id)
    register(other.info.run_id, "shop", "champion")
    register(run_id, "shop", "champion")
    assert sorted(map(str, versions())) == ["1", "2"]
    assert str(client.get_model_version_by_alias("shop", "champion").version) == "2"
    assert f"The model of run {run_id} was registered as shop before." in capsys.readouterr().out


def test_a_name_may_hold_a_quotation_mark(run_id):
    for name in ("Anna's", 'the "best"'):
        register(run_id, name, None)
        (version,) = mlflow.MlflowClient().get_registered_model(name).latest_versions
        assert str(version.version) == "1"

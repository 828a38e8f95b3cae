"""A job is told how to do without MLflow in words that its settings know."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdl_runner.errors import ConfigError, RunnerError
from sparkdl_runner.jobs import score
from sparkdl_runner.jobs.training import mlflow_run
from sparkdl_runner.tracking import Tracking


def test_without_mlflow_is_said_for_python_and_for_yaml():
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            mlflow_run.use(Tracking(tracking_uri=f"http://127.0.0.1:{port}"))
    assert str(raised.value).endswith(
        " Start it, correct the tracking URI, or run without MLflow: RunConfig(tracking=False), or "
        "mlflow: false for the train job."
    )


def test_a_scheme_that_mlflow_does_not_know_is_named_with_its_neighbour():
    with pytest.raises(ConfigError, match=r"begins with 'htpps'; known are .*Did you mean https\?"):
        mlflow_run.use(Tracking(tracking_uri="htpps://tracking.example"))
    with pytest.raises(ConfigError, match=r"'zzz'; known are [a-z0-9, +-]+\.( |$)(?!Did)"):
        mlflow_run.use(Tracking(tracking_uri="zzz://tracking.example"))


def test_an_error_of_mlflow_is_told_by_its_first_line_or_its_kind():
    assert mlflow_run._told(OSError("no such model.\n  and a traceback")) == "no such model"
    assert mlflow_run._told(OSError()) == "OSError"


def test_the_store_that_was_chosen_is_the_one_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    before = mlflow.get_tracking_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", before)  # Which is where MLflow notes it as well.
    try:
        mlflow_run.use(Tracking())
        assert mlflow.get_tracking_uri() == before
        mlflow_run.use(Tracking(tracking_uri=tmp_path.as_uri()))
        assert mlflow.get_tracking_uri() == tmp_path.as_uri()
    finally:
        mlflow.set_tracking_uri(before)


def test_a_configuration_that_could_not_be_logged_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow

    class Client:
        def get_run(self, run_id: str) -> None:
            raise ConnectionError("no route to the server")

    monkeypatch.setattr(mlflow, "MlflowClient", Client)
    mlflow_run.describe("run", {}, {})
    told = capsys.readouterr().err
    assert told.startswith("The run's configuration was not logged: ")
    assert "no route to the server" in told


def test_a_training_without_a_model_registers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    run = SimpleNamespace(data=SimpleNamespace(tags={}))
    monkeypatch.setattr(mlflow, "MlflowClient", lambda: SimpleNamespace(get_run=lambda _: run))
    monkeypatch.setattr(mlflow_run, "_newest_model", lambda client, run: None)
    with pytest.raises(RunnerError, match="logged no model that could be registered as shop"):
        mlflow_run.register("run", "shop", None)


@pytest.mark.parametrize(
    ("uri", "ends"),
    [
        ("models:/digts@champion", ": it is gone; did you mean 'digits'?"),
        ("models:/digits@challenger", ": it is gone."),
        ("runs:/0123/model", ": it is gone."),
    ],
)
def test_a_model_that_is_not_there_is_named_with_its_neighbour(
    monkeypatch: pytest.MonkeyPatch, uri: str, ends: str
) -> None:
    import mlflow

    def refuse(uri: str) -> None:
        raise mlflow.MlflowException("it is gone.\nAnd a stack.")

    registered = [SimpleNamespace(name="digits"), SimpleNamespace(name="prices")]
    client = SimpleNamespace(search_registered_models=lambda: registered)
    monkeypatch.setattr(mlflow.models, "get_model_info", refuse)
    monkeypatch.setattr(mlflow, "MlflowClient", lambda: client)
    with pytest.raises(ConfigError) as raised:
        score._find_model(uri)
    assert str(raised.value) == f"there is no model {uri}{ends}"

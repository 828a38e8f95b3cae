"""A job is told how to do without MLflow in words that its settings know."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
        "tracking: false for the train job."
    )


def test_a_scheme_that_mlflow_does_not_know_is_named_with_its_neighbour():
    with pytest.raises(ConfigError, match=r"begins with 'htpps'; known are .*Did you mean https\?"):
        mlflow_run.use(Tracking(tracking_uri="htpps://tracking.example"))
    with pytest.raises(ConfigError, match=r"'zzz'; known are [a-z0-9, +-]+\.( |$)(?!Did)"):
        mlflow_run.use(Tracking(tracking_uri="zzz://tracking.example"))


def test_an_error_of_mlflow_is_told_by_its_first_line_or_its_kind():
    assert mlflow_run._reason(OSError("no such model.\n  and a traceback")) == "no such model"
    assert mlflow_run._reason(OSError()) == "OSError"


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


def test_a_model_is_loaded_only_where_the_settings_trust_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mlflow

    given = {"model": "models:/shop@champion", "source": "/rows", "output": "/scores"}
    info = SimpleNamespace(signature=None)
    monkeypatch.setattr(mlflow.models, "get_model_info", lambda uri: info)
    monkeypatch.setattr(mlflow_run, "use", lambda tracking: None)
    with pytest.raises(ConfigError, match=r"models:/shop@champion can run any code.*trust: true"):
        score.run(score.ScoreSettings(**given))
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with pytest.raises(ConfigError, match=r"MLFLOW_ALLOW_PICKLE_DESERIALIZATION is false"):
        score.run(score.ScoreSettings(**given, trust=True))


def test_a_tag_of_a_run_or_why_it_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    tags: dict[str, Any] = {"url": 5}
    answered = threading.Event()

    def get_run(run_id: str) -> Any:
        if run_id == "gone":
            raise mlflow.MlflowException("no such run.\nAnd a stack.")
        if run_id == "slow":
            answered.wait(300)
        return SimpleNamespace(data=SimpleNamespace(tags=tags))

    monkeypatch.setattr(mlflow, "MlflowClient", lambda: SimpleNamespace(get_run=get_run))
    assert mlflow_run.tag("r", "url", 300) == "5"
    assert mlflow_run.tag("r", "other", 300) is None
    with pytest.raises(ConfigError, match=r"^cannot resume the MLflow run gone: no such run\.$"):
        mlflow_run.tag("gone", "url", 300)
    with pytest.raises(ConfigError, match="resume run slow"):
        mlflow_run.tag("slow", "url", 0.01)
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "sparkdl-mlflow-call":
            thread.join()


def logged(name: str, created: int, status: str = "READY") -> Any:
    from mlflow.entities import LoggedModelStatus

    return SimpleNamespace(
        model_uri=f"models:/{name}",
        creation_timestamp=created,
        status=getattr(LoggedModelStatus, status),
    )


@pytest.mark.parametrize(
    ("models", "newest"),
    [
        ([], None),
        ([(5, "a", 1), (3, "b", 2)], "models:/a"),
        ([(5, "a", 1), (5, "b", 2)], "models:/b"),
        ([(None, "a", 1), (3, "b", 2), (9, "lost", 3)], "models:/b"),
        ([(9, "lost", 3)], None),
    ],
)
def test_the_model_that_was_logged_last_is_that_of_the_last_step(
    models: list[tuple[int | None, str, int]], newest: str | None
) -> None:
    found = {
        name: logged(name, at, "PENDING" if name == "lost" else "READY") for _, name, at in models
    }
    outputs = [SimpleNamespace(step=step, model_id=name) for step, name, _ in models]
    run = SimpleNamespace(outputs=SimpleNamespace(model_outputs=outputs) if models else None)
    assert mlflow_run._newest_model(SimpleNamespace(get_logged_model=found.get), run) == newest


def test_before_mlflow_3_a_tag_lists_the_models() -> None:
    history = json.dumps([{"artifact_path": "first"}, {"artifact_path": "last"}])
    tags = {"mlflow.log-model.history": history}
    run = SimpleNamespace(info=SimpleNamespace(run_id="r"), data=SimpleNamespace(tags=tags))
    assert mlflow_run._newest_model(SimpleNamespace(), run) == "runs:/r/last"
    tags.clear()
    assert mlflow_run._newest_model(SimpleNamespace(), run) is None


@pytest.mark.parametrize(
    ("uri", "run_id", "source", "status", "version"),
    [
        ("models:/m-1", "0a1b", "models:/m-1", "READY", "2"),
        ("models:/m-1", "0a1b", "models:/m-2", "READY", None),
        ("models:/m-1", "other", "models:/m-1", "READY", None),
        ("models:/m-1", "0a1b", "models:/m-1", "PENDING_REGISTRATION", None),
        ("runs:/0a1b/model", "0a1b", "s3://b/1/0a1b/artifacts/model", "READY", "2"),
        ("runs:/0a1b/model", "0a1b", "s3://b/1/0a1b/artifacts/other", "READY", None),
    ],
)
def test_the_version_as_which_a_model_was_registered(
    uri: str, run_id: str, source: str, status: str, version: str | None
) -> None:
    found = SimpleNamespace(run_id=run_id, source=source, status=status, version=2)
    asked: list[str] = []
    client = SimpleNamespace(search_model_versions=lambda query: asked.append(query) or [found])
    assert mlflow_run._version_of(client, "0a1b", uri, "shop") == version
    mlflow_run._version_of(client, "0a1b", uri, "Anna's")
    assert asked == ["name = 'shop'", 'name = "Anna\'s"']


def test_a_store_without_a_page_is_told_how_to_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow

    for uri in ("http://u:secret12@h", "databricks"):
        monkeypatch.setattr(mlflow, "get_tracking_uri", lambda uri=uri: uri)
        assert "secret12" not in mlflow_run.show_page("r1")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: "sqlite:////a b.db")
    assert mlflow_run.show_page("r1") == "sqlite:////a b.db"
    told = capsys.readouterr().out
    assert f"{sys.executable} -m mlflow ui --backend-store-uri 'sqlite:////a b.db'\n" in told
    assert "http://127.0.0.1:5000/#/runs/r1\n" in told

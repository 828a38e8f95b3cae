"""The name of a run that has none from its user, and the program that is its source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.tracking import Tracking
from sparkdl_runner.tracking.run import parameters_and_tags
from sparkdl_runner.tracking.run.opening.lease import Lease
from sparkdl_runner.tracking.run.opening.notebook_source import notebook_tags
from sparkdl_runner.tracking.run.opening.opened import open_run
from sparkdl_runner.tracking.run.opening.run_name import RunName

mlflow = pytest.importorskip("mlflow")

KERNEL = {"mlflow.source.name": "/opt/ipykernel_launcher.py", "mlflow.source.type": "LOCAL"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]) -> str:
    return new_store(tmp_path_factory.mktemp("store"))


def opened(store: str, experiment: str, name: RunName | None, **more: Any) -> Any:
    settings = Tracking(tracking_uri=store, experiment=experiment, **more)
    return open_run(settings, Lease(), name).run


def test_runs_of_a_function_are_numbered_in_their_experiment(store: str) -> None:
    def names(experiment: str, *texts: str) -> list[str]:
        return [opened(store, experiment, RunName(text=one)).info.run_name for one in texts]

    assert names("a", "train", "train", "fit_one", "train") == [
        *("train-1", "train-2", "fit_one-1", "train-3")
    ]
    assert names("b", "train", "it's") == ["train-1", "it's-1"]
    # To a filter, the underscore is any sign.
    assert names("a", "fitXone", "fitXone", "fit_one") == ["fitXone-1", "fitXone-2", "fit_one-2"]
    assert names("a", """'b"c""", "train-3", "train") == ["""'bc-1""", "train-3-1", "train-4"]


def test_a_server_that_lists_no_runs_makes_one_all_the_same(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise mlflow.MlflowException("PERMISSION_DENIED")

    monkeypatch.setattr(mlflow.MlflowClient, "search_runs", refuse)
    assert opened(store, "no list", RunName(text="train")).info.run_name == "train-1"


def test_the_users_name_is_the_name_and_values_need_no_number(store: str) -> None:
    named = opened(store, "c", RunName(text="train"), run_name="mine")
    values = RunName(text="lr=0.1", is_numbered=False)
    assert named.info.run_name == "mine"
    assert [opened(store, "c", values).info.run_name for _ in range(2)] == ["lr=0.1", "lr=0.1"]
    assert opened(store, "c", None).info.run_name, "MLflow makes one up"


def test_the_source_that_is_given_is_the_runs_from_its_first_moment(store: str) -> None:
    tags = {"mlflow.source.name": "digits.py", "note": "later"}
    run = opened(store, "d", RunName(text="train"), tags=tags)
    assert run.data.tags["mlflow.source.name"] == "digits.py"
    assert "note" not in run.data.tags


def test_a_notebook_is_the_source_where_mlflow_names_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert notebook_tags({"mlflow.source.name": "train.py"}) == {}
    assert notebook_tags(KERNEL) == {"mlflow.source.type": "NOTEBOOK"}
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/a/digits.ipynb")
    of_jupyter = {"mlflow.source.type": "NOTEBOOK", "mlflow.source.name": "digits.ipynb"}
    assert notebook_tags(KERNEL) == of_jupyter
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "/home/a/code.ipynb"})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert notebook_tags(KERNEL)["mlflow.source.name"] == "code.ipynb"


def test_a_run_of_another_thread_is_below_the_callers_active_one(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = mlflow.MlflowClient(tracking_uri=store)
    above = client.create_run(client.create_experiment("of the search"))
    monkeypatch.setattr(mlflow, "active_run", lambda: None)
    name = RunName(text="lr=0.1", is_numbered=False, below=above)

    def made(uri: str) -> Any:
        monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: uri)
        return open_run(Tracking(tracking_uri=store), Lease(), name).run

    run = made(store)
    assert run.data.tags["mlflow.parentRunId"] == above.info.run_id
    assert run.info.experiment_id == above.info.experiment_id
    assert "mlflow.parentRunId" not in made("sqlite:///another.db").data.tags


def test_trainings_beside_one_another_add_themselves_to_their_parent_in_turn() -> None:
    is_held = []
    parent = SimpleNamespace(data=SimpleNamespace(tags={}))
    run = SimpleNamespace(info=SimpleNamespace(run_id="r", experiment_id="1", run_name="n"))

    def get_run(_: str) -> Any:
        is_held.append(parameters_and_tags._ONE_AT_A_TIME.locked())
        return parent

    told: list[tuple[str, ...]] = []
    client = SimpleNamespace(get_run=get_run, set_tag=lambda *tag: told.append(tag))
    parameters_and_tags.tell_parent(client, "p", run)
    assert is_held == [True]
    assert ("p", "sparkdl_runner.runs", "r") in told
    assert not parameters_and_tags._ONE_AT_A_TIME.locked()

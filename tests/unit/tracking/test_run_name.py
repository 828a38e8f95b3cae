"""The name of a run that has none from its user, and the program that is its source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.tracking import Tracking
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

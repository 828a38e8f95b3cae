"""Which ranks reach a store that is a file of the driver's host."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.tracking import Tracking, rank_run
from sparkdl_runner.tracking.rank_run import RunTicket, StoreFile
from sparkdl_runner.tracking.run.opening.ticket import ticket_of

KEY = {"AWS_SECRET_ACCESS_KEY": "s"}


def ticket(uri: str, *, single_host: bool = False) -> RunTicket:
    info = SimpleNamespace(run_id="r", experiment_id="1", artifact_uri="file:///a")
    opened: Any = SimpleNamespace(uri=uri, run=SimpleNamespace(info=info), source_tags={})
    return ticket_of(opened, Tracking(), run_name="n", credentials=KEY, single_host=single_host)


def of_rank(made: RunTicket) -> tuple[bool, str, bool]:
    run, environment = made.for_rank(0, "h")
    shutil.rmtree(run.folder)
    uri = environment["MLFLOW_TRACKING_URI"]
    assert run.tracking_uri == uri
    return run.store_is_elsewhere, uri, KEY.items() <= environment.items()


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").touch()
    (tmp_path / "mlruns").mkdir()


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("sqlite:///mlflow.db", "sqlite:///{folder}/mlflow.db"),
        ("sqlite:///mlflow.db?timeout=3", "sqlite:///{folder}/mlflow.db?timeout=3"),
        ("sqlite:///{folder}/mlflow.db", "sqlite:///{folder}/mlflow.db"),
        ("file://{folder}/mlruns", "file://{folder}/mlruns"),
        ("mlruns", "{folder}/mlruns"),
        ("{folder}/mlruns", "{folder}/mlruns"),
    ],
)
def test_an_executor_of_the_drivers_host_reaches_the_file(uri, told, tmp_path, monkeypatch):
    made = ticket(uri.format(folder=tmp_path))
    monkeypatch.chdir("/")  # Spark's executors have working folders of their own.
    assert of_rank(made) == (False, told.format(folder=tmp_path), True)


def test_another_host_does_not_though_it_has_such_a_path(monkeypatch):
    made = ticket("sqlite:///mlflow.db")
    monkeypatch.setattr(rank_run, "_host", lambda: "another")
    is_elsewhere, _, has_key = of_rank(made)
    assert (is_elsewhere, has_key) == (True, False)


def test_a_container_with_another_file_at_that_path_does_not(tmp_path):
    made = ticket("sqlite:///mlflow.db")
    os.rename(tmp_path / "mlflow.db", tmp_path / "of-the-driver.db")
    assert of_rank(made)[0]
    (tmp_path / "mlflow.db").touch()
    assert of_rank(made)[0]


def test_a_file_that_was_never_there_is_nowhere():
    made = ticket("sqlite:///none.db")
    assert of_rank(made)[0]
    assert not StoreFile.at("/none").is_here()


def test_a_file_that_may_not_be_written_is_not_reached(monkeypatch):
    made = ticket("sqlite:///mlflow.db")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert of_rank(made)[0]


@pytest.mark.parametrize(("uri", "single_host"), [("http://h", False), ("sqlite:///x.db", True)])
def test_other_stores_are_told_as_they_are(uri, single_host):
    made = ticket(uri, single_host=single_host)
    assert made.store_file is None
    assert of_rank(replace(made, tracking_uri=uri)) == (False, uri, True)

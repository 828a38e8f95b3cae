"""MLflow's own store is this user's alone where we are the first to make it."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_runner.tracking.local_store import make_private, make_whole
from sparkdl_runner.tracking.run.opening import store
from sparkdl_runner.tracking.settings import Tracking


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_a_new_one_is_closed_to_others(here: Path) -> None:
    make_private(f"sqlite:///{here}/mlflow.db")
    assert modes(here) == {"mlflow.db": 0o600, "mlruns": 0o700}


def test_one_that_is_there_stays_as_it_is(here: Path) -> None:
    (here / "mlflow.db").write_text("mine")
    (here / "mlflow.db").chmod(0o664)
    make_private(f"sqlite:///{here}/mlflow.db")
    assert modes(here) == {"mlflow.db": 0o664}
    assert (here / "mlflow.db").read_text() == "mine"


@pytest.mark.parametrize("uri", ["http://host", "file:///x", "sqlite:///no/such/folder/a.db"])
def test_others_are_left_to_mlflow(here: Path, uri: str) -> None:
    make_private(uri)
    assert not modes(here)


def test_a_store_that_somebody_named_is_left_to_mlflow(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    made: list[str] = []
    monkeypatch.setattr(store, "make_private", made.append)
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: "sqlite:///mlflow.db")
    for named, tracking in ((True, Tracking()), (False, Tracking(tracking_uri="sqlite:///x.db"))):
        monkeypatch.setattr(mlflow, "is_tracking_uri_set", lambda named=named: named)
        store.make_default_store(tracking)
    assert not made
    store.make_default_store(Tracking())
    assert made == ["sqlite:///mlflow.db"]


def test_a_driver_that_is_killed_while_it_makes_a_database_leaves_none_behind(
    tmp_path: Path,
) -> None:
    """MLflow makes one table after another, and could not go on with a part of them."""
    code = (
        "import os, sys; import mlflow.store.db.utils as utils\n"
        "from sparkdl_runner.tracking import local_store\n"
        "utils._upgrade_db = lambda engine: os._exit(9)\n"
        "local_store.make_whole(sys.argv[1])\n"
    )
    database = tmp_path / "mlflow.db"
    import mlflow

    uri = f"sqlite:///{database}"
    done = subprocess.run([sys.executable, "-c", code, uri], check=False)
    assert done.returncode == 9
    assert not database.exists()
    assert make_whole(uri)
    assert not make_whole(uri), "it is there"
    assert mlflow.MlflowClient(tracking_uri=uri).search_experiments()[0].name == "Default"

"""MLflow's own store is this user's alone where we are the first to make it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sparkdl_runner.tracking.local_store import make_private
from sparkdl_runner.tracking.run.opening import store
from sparkdl_runner.tracking.settings import Tracking


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


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

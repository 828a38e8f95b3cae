"""MLflow's own store is whole, and this user's alone, from its first moment."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_runner.tracking.local_store import make_private, make_whole

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]
mlflow = pytest.importorskip("mlflow")


def test_a_new_one_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_private(f"sqlite:///{tmp_path}/mlflow.db")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"mlflow.db": 0o600, "mlruns": 0o700}


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
    uri = f"sqlite:///{database}"
    done = subprocess.run([sys.executable, "-c", code, uri], check=False)
    assert done.returncode == 9
    assert not database.exists()
    assert make_whole(uri)
    assert not make_whole(uri), "it is there"
    assert mlflow.MlflowClient(tracking_uri=uri).search_experiments()[0].name == "Default"


def test_one_is_closed_to_others_also_where_files_have_one_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*paths: str) -> None:
        raise PermissionError("this file system has no hard links")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.link", link)
    make_private(f"sqlite:///{tmp_path}/mlflow.db")
    assert stat.S_IMODE((tmp_path / "mlflow.db").stat().st_mode) == 0o600

"""The experiment of a new run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner import LaunchError
from sparkdl_runner.tracking.run.opening import store
from sparkdl_runner.tracking.run.server_calls import ServerCalls

ACTIVE = SimpleNamespace(info=SimpleNamespace(experiment_id=5))


class Client:
    def get_experiment_by_name(self, name: str) -> Any:
        stage = "deleted" if name == "gone" else "active"
        return None if name == "new" else SimpleNamespace(experiment_id=7, lifecycle_stage=stage)

    def create_experiment(self, name: str, tags: dict[str, str]) -> int:
        assert (name, tags) == ("new", store.KIND_TAG)
        return 8


def experiment(name: str | None, active: Any = None, *, is_global: bool = True) -> str:
    call = ServerCalls(uri="http://u:secret12@h", timeout_seconds=120)
    return store._experiment(Client(), name, active, call, is_global=is_global)


@pytest.mark.parametrize(
    ("name", "variables", "found"),
    [
        ("known", {}, "7"),
        ("new", {}, "8"),
        (None, {}, "0"),
        (None, {"MLFLOW_EXPERIMENT_ID": "3"}, "3"),
        (None, {"MLFLOW_EXPERIMENT_NAME": "known", "MLFLOW_EXPERIMENT_ID": "3"}, "7"),
    ],
)
def test_in_a_store_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, name: str | None, variables: dict[str, str], found: str
) -> None:
    for one in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(one, raising=False)
    for one, value in variables.items():
        monkeypatch.setenv(one, value)
    assert experiment(name, ACTIVE, is_global=False) == found


@pytest.mark.parametrize(("active", "of_mlflow", "found"), [(ACTIVE, "9", "5"), (None, "9", "9")])
def test_in_mlflows_own_store(
    monkeypatch: pytest.MonkeyPatch, active: Any, of_mlflow: str, found: str
) -> None:
    monkeypatch.setattr("mlflow.tracking.fluent._get_experiment_id", lambda: of_mlflow)
    assert experiment(None, active) == found
    assert experiment("known", active) == "7"
    monkeypatch.setattr("mlflow.tracking.fluent._get_experiment_id", lambda: None)
    assert experiment(None) == "0"


def test_one_that_was_deleted_is_told() -> None:
    with pytest.raises(LaunchError, match=r"experiment 'gone' at .* was deleted") as raised:
        experiment("gone")
    assert "secret12" not in str(raised.value)

"""What is given to an old MLflow's and to today's ``log_model``."""

from __future__ import annotations

from typing import Any

from sparkdl_runner.tracking.models.flavor_arguments import keeps_graphs, taken_by


def old(model: Any, artifact_path: str, **saved_with: Any) -> None: ...


def new(model: Any, name: str, step: int = 0, serialization_format: str = "pickle") -> None: ...


def test_arguments_are_those_that_this_mlflow_takes() -> None:
    today = {"name": "m", "step": 3, "serialization_format": "pt2", "registered_model_name": "r"}
    assert taken_by(new, today) == today
    assert taken_by(old, today) == {"artifact_path": "m", "registered_model_name": "r"}
    assert (keeps_graphs(new), keeps_graphs(old)) == (True, False)

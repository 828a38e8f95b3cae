"""What MLflow's functions that log a model take, from 2.13 to today's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def keeps_graphs(log: Callable[..., Any]) -> bool:
    """Whether this MLflow can keep a network as an exported graph."""
    return "serialization_format" in inspect.signature(log).parameters


def taken_by(log: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as this MLflow takes them: a name is a path, where models are no more yet.

    Args:
        log: A flavor's ``log_model``. What it does not name goes to whatever it saves with.
        arguments: In today's names.
    """
    taken = inspect.signature(log).parameters
    found = dict(arguments)
    if "name" not in taken and "name" in found:
        found["artifact_path"] = found.pop("name")
    for newer in ("serialization_format", "step", "validate_serving_input"):
        if newer not in taken:
            found.pop(newer, None)
    return found


def version_of(info: Any, name: str | None) -> str:
    """The version under which a model was registered, also where its description does not say."""
    found = getattr(info, "registered_model_version", None)
    if found is None:
        from mlflow import MlflowClient

        versions = MlflowClient().search_model_versions(f"name='{name}'")
        found = max(int(one.version) for one in versions if one.run_id == info.run_id)
    return str(found)

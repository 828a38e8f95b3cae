"""The arguments of MLflow's functions that log a model, from 2.13 on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

# Other arguments that are not among a function's own go to whatever it saves with.
_NEWER = ("name", "serialization_format", "step")


def keeps_graphs(log: Callable[..., Any]) -> bool:
    """Whether this MLflow can keep a network as an exported graph."""
    return "serialization_format" in inspect.signature(log).parameters


def taken_by(log: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out what this MLflow does not know; before MLflow 3, a model's name is its path.

    Args:
        log: A flavor's ``log_model`` or ``save_model``.
        arguments: In today's names.
    """
    known = inspect.signature(log).parameters
    taken = {
        name: value for name, value in arguments.items() if name in known or name not in _NEWER
    }
    if "name" in arguments and "name" not in known:
        taken["artifact_path"] = arguments["name"]
    return taken


def version_of(info: Any, name: str | None) -> str:
    """The version under which a model was registered, also before MLflow 2.14, which says it."""
    version = getattr(info, "registered_model_version", None)
    if version is None:
        from mlflow import MlflowClient

        versions = MlflowClient().search_model_versions(f"name='{name}'")
        version = max(
            int(registered.version) for registered in versions if registered.run_id == info.run_id
        )
    return str(version)

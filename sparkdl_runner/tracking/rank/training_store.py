"""The tracking store of the training's run, as ranks see it; any other store stays as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sparkdl_runner.importing import without_collecting
from sparkdl_runner.tracking.rank_run import RankRun


def is_training_store(run: RankRun, uri: str | None = None) -> bool:
    """Whether a tracking URI, by default MLflow's current one, names the store of the run."""
    from mlflow.tracking._tracking_service import utils

    return _place(uri or utils.get_tracking_uri()) == _place(run.tracking_uri)


def replace_store(run: RankRun, derive: Callable[[type], type]) -> None:
    """Makes the training's store one of a class of ours.

    Args:
        run: The training's run.
        derive: Makes a class with this rank's own writing methods from the store's class.
    """
    from mlflow.tracking._model_registry import utils as model_utils
    from mlflow.tracking._tracking_service import utils

    registry = utils._tracking_store_registry
    open_store, open_models = registry.get_store, model_utils._get_store
    nowhere = _nowhere(run) if run.store_is_elsewhere else None
    opening = threading.Lock()
    derived: dict[type, type] = {}

    def get_store(store_uri: str | None = None, artifact_uri: str | None = None) -> Any:
        if not is_training_store(run, store_uri):
            return open_store(store_uri, artifact_uri)
        with without_collecting():  # The first time, it imports a database's library.
            store = nowhere or open_store(store_uri, artifact_uri)
        kind = type(store)
        with opening:
            # MLflow keeps its stores, and gives the same one again.
            if kind not in derived.values():
                if kind not in derived:
                    derived[kind] = derive(kind)
                store.__class__ = derived[kind]
        return store

    def get_models(store_uri: str | None = None, *args: Any, **options: Any) -> Any:
        uri = store_uri or model_utils._resolve_registry_uri()
        if nowhere is not None and is_training_store(run, uri):
            return nowhere
        return open_models(store_uri, *args, **options)

    registry.get_store = get_store
    model_utils._get_store = get_models


def _place(uri: str) -> tuple[str, str, str]:
    """What makes two URIs of one store equal: a user or a last slash does not matter."""
    parts = urlsplit(uri)
    return parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/")


def _nowhere(run: RankRun) -> Any:
    """In place of a store that is a file on another host: refuses all but what the driver tells."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.model_registry.abstract_store import AbstractStore as AbstractModels
    from mlflow.store.tracking.abstract_store import AbstractStore

    def refuse(*_: Any, **__: Any) -> Any:
        raise MlflowException(
            f"Rank {run.rank} runs on host {run.host}, and MLflow's store is a file on the "
            "driver's. Rank 0's metrics, parameters and tags reach it by way of the driver; for "
            "all else, set a tracking server (MLFLOW_TRACKING_URI=http://…)."
        )

    names = {*dir(AbstractStore), *dir(AbstractModels)}
    methods: dict[str, Any] = {name: refuse for name in names if not name.startswith("_")}
    for name in ("shut_down_async_logging", "flush_async_logging", "end_async_logging"):
        methods[name] = lambda *_: None  # There is nothing that runs beside.
    return type("Nowhere", (), methods)()

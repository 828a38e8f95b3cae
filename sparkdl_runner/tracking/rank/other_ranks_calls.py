"""Plain MLflow calls on ranks other than 0: they read, and do not write the training's run."""

from __future__ import annotations

import functools
import inspect
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from sparkdl_runner.tracking.rank.active_run import described, make_active
from sparkdl_runner.tracking.rank.training_store import replace_store
from sparkdl_runner.tracking.rank_run import RankRun

_STORE_WRITES = (
    *("log_metric", "log_param", "set_tag", "log_batch"),
    *("log_metric_async", "log_param_async", "set_tag_async", "log_batch_async"),
    *("delete_tag", "log_inputs", "log_outputs", "record_logged_model"),
    *("update_run_info", "delete_run", "restore_run"),
    *("finalize_logged_model", "set_logged_model_tags", "log_logged_model_params"),
    *("delete_logged_model_tag", "delete_logged_model"),
)
_ARTIFACT_WRITES = (
    *("log_artifact", "log_artifacts", "_log_artifact_async"),
    *("log_model_artifact", "log_model_artifacts"),
)
_VERSION_WRITES = (
    *("set_registered_model_alias", "set_model_version_tag", "delete_model_version_tag"),
    *("transition_model_version_stage", "update_model_version"),
)
# The registry counts from 1.
_NO_VERSION = "0"


def stay_out(run: RankRun) -> None:
    """Passes over what this rank would write to the training's run, or refuses it."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.tracking._tracking_service.client import TrackingServiceClient
    from mlflow.utils.async_logging.run_operations import RunOperations

    info = described(run).info
    models: dict[str, Any] = {}
    """What this rank would have made of the run's models, by id."""

    def pass_over(name: str = "") -> Any:
        if run.other_ranks == "error":
            raise MlflowException(
                f"Rank {run.rank} on host {run.host} called MLflow to write to the training's run; "
                "only rank 0 may (Tracking(other_ranks='error')). Ask for the rank before the call."
            )
        if name == "update_run_info":
            return info
        return RunOperations(operation_futures=[]) if name.endswith("_async") else None

    def is_ours(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        target = args[0] if args else options.get("run_id", options.get("model_id"))
        return target == run.run_id or target in models

    def derive(kind: Any) -> type:
        class ReadingStore(kind):
            """Passes over what is written to one run, and to the models that it would have."""

            def create_logged_model(self, *args: Any, **options: Any) -> Any:
                asked = inspect.signature(super().create_logged_model).bind(*args, **options)
                if asked.arguments.get("source_run_id") != run.run_id:
                    return super().create_logged_model(*args, **options)
                pass_over()
                model = _no_model(**asked.arguments)
                models[model.model_id] = model
                return model

            def get_logged_model(self, model_id: str, *args: Any, **options: Any) -> Any:
                return models.get(model_id) or super().get_logged_model(model_id, *args, **options)

        _replace(ReadingStore, _STORE_WRITES, is_ours, pass_over)
        return ReadingStore

    replace_store(run, derive)
    _replace(TrackingServiceClient, _ARTIFACT_WRITES, is_ours, pass_over)
    _replace(MlflowClient, _VERSION_WRITES, _names_no_version, pass_over)
    _log_no_models(run, pass_over)
    make_active(run, take_name=lambda _: None)


def _replace(
    kind: type,
    names: Iterable[str],
    is_ours: Callable[[tuple[Any, ...], dict[str, Any]], bool],
    pass_over: Callable[[str], Any],
) -> None:
    """Makes methods of a class pass over calls that are about what is the training's."""

    def replace(name: str, original: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **options: Any) -> Any:
            return pass_over(name) if is_ours(args, options) else original(self, *args, **options)

        setattr(kind, name, method)

    for name in names:
        if hasattr(kind, name):  # Not each version of MLflow has all of them.
            replace(name, getattr(kind, name))


def _log_no_models(run: RankRun, pass_over: Callable[[], Any]) -> None:
    """Leaves models of the run to rank 0, before this rank has serialized them."""
    import mlflow
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models.model import Model
    from mlflow.tracking._model_registry import fluent

    log: Any = Model.log
    register_model = fluent._register_model

    def log_nothing(_: type, *args: Any, **options: Any) -> Any:
        active = mlflow.active_run()
        run_id = options.get("run_id") or (active.info.run_id if active is not None else None)
        if run_id != run.run_id:
            return log(*args, **options)
        pass_over()
        asked = inspect.signature(log).bind(*args, **options).arguments
        name = asked.get("name") or asked.get("artifact_path")
        return Model(artifact_path=name, run_id=run.run_id).get_model_info()

    def register_nothing(model_uri: str, name: str, *args: Any, **options: Any) -> Any:
        if run.run_id not in model_uri:
            return register_model(model_uri, name, *args, **options)
        pass_over()
        now = int(time.time() * 1000)
        return ModelVersion(name, _NO_VERSION, now, source=model_uri, run_id=run.run_id)

    Model.log = classmethod(log_nothing)
    fluent._register_model = register_nothing


def _no_model(experiment_id: str, source_run_id: str, name: str | None = None, **_: Any) -> Any:
    """A model that only this rank knows of."""
    from mlflow.entities import LoggedModel

    now = int(time.time() * 1000)
    return LoggedModel(
        experiment_id=experiment_id,
        model_id=f"m-{uuid.uuid4().hex}",
        name=name or "model",
        artifact_location="",
        creation_timestamp=now,
        last_updated_timestamp=now,
        source_run_id=source_run_id,
    )


def _names_no_version(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return _NO_VERSION in map(str, (*args, *options.values()))

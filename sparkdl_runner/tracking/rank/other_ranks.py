"""MLflow's own calls on ranks other than 0: they read, and do not write the training's run."""

from __future__ import annotations

import inspect
import time
import uuid
from collections.abc import Callable
from typing import Any

from sparkdl_runner.tracking.rank.active_run import described, make_active
from sparkdl_runner.tracking.rank.tracking_store import answer_calls, replace_store
from sparkdl_runner.tracking.rank_run import RankRun

_STORE_WRITES = (
    *("log_metric", "log_param", "set_tag", "log_batch"),
    *("delete_tag", "log_inputs", "log_outputs", "record_logged_model"),
    *("delete_run", "restore_run"),
    *("finalize_logged_model", "set_logged_model_tags", "log_logged_model_params"),
    *("delete_logged_model_tag", "delete_logged_model"),
)
_ASYNC_STORE_WRITES = ("log_metric_async", "log_param_async", "set_tag_async", "log_batch_async")
_ARTIFACT_WRITES = (
    *("log_artifact", "log_artifacts", "_log_artifact_async"),
    *("log_model_artifact", "log_model_artifacts"),
)
_VERSION_WRITES = (
    *("set_registered_model_alias", "set_model_version_tag", "delete_model_version_tag"),
    *("transition_model_version_stage", "update_model_version"),
)
# A registry's versions count from 1.
_NO_VERSION = "0"


def set_up(run: RankRun) -> None:
    """Passes over what this rank would write to the training's run, or refuses it."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.tracking._tracking_service.client import TrackingServiceClient
    from mlflow.utils.async_logging.run_operations import RunOperations

    info = described(run).info
    models: dict[str, Any] = {}
    """The run's models that this rank did not make, by id."""

    def pass_over(*_: Any, **__: Any) -> None:
        if run.other_ranks == "error":
            raise MlflowException(
                f"Rank {run.rank} on host {run.host} called MLflow to write to the training's run; "
                "only rank 0 may (Tracking(other_ranks='error')). Ask for the rank before the call."
            )

    def pass_over_async(*_: Any, **__: Any) -> Any:
        pass_over()
        return RunOperations(operation_futures=[])

    def update_run_info(*_: Any, **__: Any) -> Any:
        pass_over()
        return info

    def is_ours(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        target = args[0] if args else options.get("run_id", options.get("model_id"))
        return target == run.run_id or target in models

    def derive(kind: Any) -> type:
        class ReadingStore(kind):
            """Ignores what is written to the run, and to the models that this rank would make."""

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

        answers = {
            **dict.fromkeys(_STORE_WRITES, pass_over),
            **dict.fromkeys(_ASYNC_STORE_WRITES, pass_over_async),
            "update_run_info": update_run_info,
        }
        answer_calls(ReadingStore, answers, is_ours)
        return ReadingStore

    replace_store(run, derive)
    answer_calls(TrackingServiceClient, dict.fromkeys(_ARTIFACT_WRITES, pass_over), is_ours)
    answer_calls(MlflowClient, dict.fromkeys(_VERSION_WRITES, pass_over), _names_no_version)
    _log_no_models(run, pass_over)
    make_active(run, take_name=lambda _: None)


def _log_no_models(run: RankRun, pass_over: Callable[[], Any]) -> None:
    """Leaves models of the run to rank 0, without serializing them here."""
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
    """A model that exists only in this rank."""
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

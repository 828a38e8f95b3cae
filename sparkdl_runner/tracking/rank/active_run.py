"""The training's run as the one that MLflow's own functions find active in a rank."""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sparkdl_runner.tracking.rank.tracking_store import is_training_store
from sparkdl_runner.tracking.rank_run import OWN_RUN_TAG, RankRun


def described(run: RankRun) -> Any:
    """The run as a ``mlflow.entities.Run``, made without a call to its server."""
    from mlflow.entities import LifecycleStage, Run, RunData, RunInfo

    options: dict[str, Any] = {
        "run_id": run.run_id,
        "experiment_id": run.experiment_id,
        "user_id": "",
        "status": "RUNNING",
        "start_time": int(time.time() * 1000),
        "end_time": None,
        "lifecycle_stage": LifecycleStage.ACTIVE,
        "artifact_uri": run.artifact_uri,
        "run_name": run.run_name,
    }
    if "run_uuid" in inspect.signature(RunInfo).parameters:
        options["run_uuid"] = run.run_id  # Before MLflow 3.
    return Run(RunInfo(**options), RunData())


def make_active(run: RankRun, take_name: Callable[[str], None]) -> None:
    """Makes the training's run the active one, wherever the function has chosen no other.

    With another tracking URI, and on rank 0 with another experiment or the id of another run,
    MLflow's functions do what they always do. On other ranks they make no run in the training's
    store.

    Args:
        run: The training's run.
        take_name: Called with a name that ``start_run`` gives to the training's run.
    """
    import mlflow
    from mlflow.entities import RunTag
    from mlflow.tracking import fluent

    known = described(run)
    real = {name: getattr(fluent, name, None) or getattr(mlflow, name) for name in _REPLACED}
    parameters = inspect.signature(real["start_run"])

    class JoinedRun(fluent.ActiveRun):
        """The run as a context that leaves it active: only the driver ends it."""

        def __exit__(self, *_: object) -> None:
            return None

    def is_elsewhere(experiment_id: Any = None) -> bool:
        if not is_training_store(run):
            return True
        chosen = str(experiment_id or fluent._active_experiment_id or run.experiment_id)
        return run.rank == 0 and chosen != run.experiment_id

    def settle(experiment_id: Any = None) -> list[Any]:
        """Keeps the training's run at the bottom of MLflow's stack, or out of it."""
        stack: list[Any] = _stack(fluent)
        if is_elsewhere(experiment_id):
            stack[:] = [active for active in stack if active.info.run_id != run.run_id]
        elif not stack:
            stack.append(JoinedRun(known))
        return stack

    def start_run(*args: Any, **options: Any) -> Any:
        asked = parameters.bind(*args, **options).arguments
        run_id = asked.get("run_id")
        is_nested = bool(asked.get("nested")) and run.rank == 0
        stack = settle(None if is_nested else asked.get("experiment_id"))
        is_top = bool(stack) and stack[-1].info.run_id == run.run_id
        if run_id == run.run_id or (run_id is None and is_top and not is_nested):
            if name := asked.get("run_name"):
                take_name(name)
            tags = dict(asked.get("tags") or {})
            if description := asked.get("description"):
                tags["mlflow.note.content"] = description
            if tags:
                run_tags = [RunTag(key, str(value)) for key, value in tags.items()]
                mlflow.MlflowClient().log_batch(run.run_id, tags=run_tags)
            return JoinedRun(known)
        # A run with another id, or in another store, is no child of the training's.
        is_beside = is_top and not is_nested
        if is_beside:
            stack.pop()
        try:
            # The ids in the environment are the training's.
            with _without("MLFLOW_RUN_ID", *([] if is_training_store(run) else [_EXPERIMENT])):
                made = real["start_run"](*args, **options)
            is_new = run_id is None and not is_nested
            if is_new and run.rank == 0 and is_training_store(run):
                # The training's run then says where to look.
                mlflow.MlflowClient().set_tag(run.run_id, OWN_RUN_TAG, made.info.run_id)
            return made
        finally:
            if is_beside:
                stack.insert(0, JoinedRun(known))

    def end_run(*args: Any, **options: Any) -> Any:
        stack = settle()
        if stack and stack[-1].info.run_id == run.run_id:
            return None
        return real["end_run"](*args, **options)

    def set_experiment(*args: Any, **options: Any) -> Any:
        name = args[0] if args else options.get("experiment_name")
        if run.rank != 0 and name is not None and is_training_store(run):
            from mlflow.entities import Experiment, LifecycleStage

            # Rank 0 makes it, if it wants to.
            if mlflow.get_experiment_by_name(name) is None:
                return Experiment(run.experiment_id, name, "", LifecycleStage.ACTIVE)
        return real["set_experiment"](*args, **options)

    def active_run() -> Any:
        settle()
        return real["active_run"]()

    def get_or_start_run() -> Any:
        settle()
        return real["_get_or_start_run"]()

    def set_tracking_uri(uri: Any) -> None:
        real["set_tracking_uri"](run.tracking_uri if uri == run.given_uri else uri)

    ours: list[Callable[..., Any]] = [start_run, end_run, set_experiment, active_run]
    ours += [get_or_start_run, set_tracking_uri]
    for name, function in zip(_REPLACED, ours, strict=True):
        replacement = functools.wraps(real[name])(function)
        # The public ones are attributes of several modules.
        for module in (fluent, mlflow, mlflow.tracking):
            if getattr(module, name, None) is real[name]:
                setattr(module, name, replacement)
    settle()


_EXPERIMENT = "MLFLOW_EXPERIMENT_ID"
_REPLACED = (
    "start_run",
    "end_run",
    "set_experiment",
    "active_run",
    "_get_or_start_run",
    "set_tracking_uri",
)


def _stack(fluent: Any) -> Any:
    """MLflow's active runs: one list in all, or, since 2.14, one of each thread."""
    stack = fluent._active_run_stack
    return stack.get() if hasattr(stack, "get") else stack


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Takes variables out of the environment for a while."""
    values = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(values)

"""MLflow's store before a run is opened: whether there is one, whether it answers, its experiment.

Whatever is wrong is said before ranks start, and in one sentence.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from sparkdl_runner.base.importing import without_collecting
from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.tracking.local_store import make_private, make_whole
from sparkdl_runner.tracking.run.server import REQUEST_SECONDS, is_databricks, why_unreachable
from sparkdl_runner.tracking.run.server_calls import WITHOUT, ServerCalls
from sparkdl_runner.tracking.settings import Tracking

LEAST_VERSION = (2, 13)
# Without this tag, MLflow's pages show an experiment as one of language models.
KIND_TAG = {"mlflow.experimentKind": "custom_model_development"}
_SET_UP_BY = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "DATABRICKS_RUNTIME_VERSION",
)


@dataclass(frozen=True, kw_only=True)
class Store:
    """MLflow's store, and the experiment that new runs are made in."""

    client: Any
    """An ``MlflowClient``."""
    call: ServerCalls
    experiment_id: str
    active: Any
    """The run that the caller has open there, if there is one."""


def is_set_up(*, is_used: bool = False) -> bool:
    """Whether the user has set MLflow up in this process, so that runs are wanted.

    If no run was asked for, an MLflow that is too old is only a warning.

    Args:
        is_used: Whether the training calls MLflow, so that it only needs to be installed.
    """
    if is_used or any(os.environ.get(name) for name in _SET_UP_BY):
        if importlib.util.find_spec("mlflow") is None:
            return False
    else:
        known = sys.modules.get("mlflow")
        if known is None or not hasattr(known, "active_run"):
            return False
        if not known.is_tracking_uri_set() and known.active_run() is None:
            return False
    import mlflow

    if wrong := _too_old(mlflow.__version__):
        tell(f"{wrong}: this training has no MLflow run.")
    return wrong is None


def connect(settings: Tracking) -> tuple[Any, ServerCalls]:
    """A client of the store that ``settings`` ask for, and what calls it with a deadline.

    Raises:
        LaunchError: MLflow is missing or old, or the store does not answer.
    """
    uri = check_store(settings)
    import mlflow

    call = ServerCalls(uri=uri, timeout_seconds=settings.opening_timeout_seconds)
    call(partial(make_default_store, settings), "make the database")
    call(partial(make_whole, uri), "make the database")
    client = call(lambda: mlflow.MlflowClient(tracking_uri=uri), "make a client")
    if (service := getattr(client, "_tracking_client", None)) is not None:
        # MLflow prints a server's run again as it ends. The driver has shown its address.
        service._log_url = lambda _: None
    return client, call


def open_store(settings: Tracking, below: Any = None) -> Store:
    """Opens the store, and makes the experiment if it is not there.

    Args:
        settings: Which store it is to be.
        below: The run that is active for the caller, if not in this thread.

    Raises:
        LaunchError: As of ``connect``; or the server refuses, or the experiment is deleted.
    """
    client, call = connect(settings)
    import mlflow

    # A run or experiment that is active in another store is not in this one.
    is_global = call.uri == mlflow.get_tracking_uri()
    active = (mlflow.active_run() or below) if is_global else None
    experiment_id = _experiment(client, settings.experiment, active, call, is_global=is_global)
    return Store(client=client, call=call, experiment_id=experiment_id, active=active)


def check_store(settings: Tracking) -> str:
    """Checks that MLflow is installed, and that its store answers.

    Returns:
        The store's URI.

    Raises:
        LaunchError: MLflow is missing or old, or the store is of no known kind or does not answer.
    """
    mlflow = _import_mlflow()
    uri = settings.tracking_uri or str(mlflow.get_tracking_uri())
    _check_scheme(uri, Redactor()(uri))
    if wrong := why_unreachable(uri, min(REQUEST_SECONDS, settings.opening_timeout_seconds)):
        raise LaunchError(
            f"The MLflow tracking server {wrong}. Start it, correct the tracking URI, or {WITHOUT}"
        )
    return uri


def make_default_store(settings: Tracking) -> None:
    """Makes MLflow's default store, for this user alone, where it is used and not there yet."""
    import mlflow

    if settings.tracking_uri is None and not mlflow.is_tracking_uri_set():
        make_private(str(mlflow.get_tracking_uri()))


def _import_mlflow() -> Any:
    if importlib.util.find_spec("mlflow") is None:
        raise LaunchError(
            "MLflow is not installed on the driver: run pip install 'sparkdl-runner[mlflow]', or "
            f"{WITHOUT}"
        )
    with without_collecting():
        import mlflow

    if wrong := _too_old(mlflow.__version__):
        raise LaunchError(f"{wrong}: run pip install 'mlflow>=2.13,<4', or {WITHOUT}")
    return mlflow


def _too_old(version: str) -> str | None:
    installed = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if installed >= LEAST_VERSION:
        return None
    return f"MLflow {version} is installed on the driver; 2.13 or later is needed"


def _check_scheme(uri: str, shown: str) -> None:
    from mlflow.tracking._tracking_service.utils import _tracking_store_registry

    known = sorted({*_tracking_store_registry._registry, "databricks"} - {""})
    scheme = uri if uri in known else urlsplit(uri).scheme.partition("+")[0]
    if scheme and scheme not in known:
        near = difflib.get_close_matches(scheme, known, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise LaunchError(
            f"The tracking URI {shown!r} is of no kind that MLflow knows: it begins with "
            f"{scheme!r}; known are {', '.join(known)}.{meant}"
        )


def _experiment(
    client: Any, name: str | None, active: Any, call: ServerCalls, *, is_global: bool
) -> str:
    """The id of the experiment, which is made if it has a name and is not there."""
    if name is None and not is_global:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if name is None:
            return os.environ.get("MLFLOW_EXPERIMENT_ID") or "0"
    if name is None:
        if active is not None:
            return str(active.info.experiment_id)
        from mlflow.tracking.fluent import _get_experiment_id

        # On Databricks it follows from the notebook, of which only the notebook's thread knows.
        if is_databricks(call.uri):
            return str(_get_experiment_id() or "0")
        return str(call(_get_experiment_id, "find the experiment") or "0")
    experiment = call(lambda: client.get_experiment_by_name(name), f"find experiment {name!r}")
    if experiment is None:
        return str(
            call(
                lambda: client.create_experiment(name, tags=KIND_TAG),
                f"make experiment {name!r}",
            )
        )
    if experiment.lifecycle_stage == "deleted":
        raise LaunchError(
            f"The MLflow experiment {name!r} at {Redactor()(call.uri)} was deleted. Restore it, or "
            "take another."
        )
    return str(experiment.experiment_id)

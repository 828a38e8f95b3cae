"""Opens an MLflow run, or resumes one; errors are one sentence."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.importing import without_collecting
from sparkdl_runner.redaction import Redactor
from sparkdl_runner.tracking.local_store import make_private
from sparkdl_runner.tracking.run.journal import ATTEMPT_TAG
from sparkdl_runner.tracking.run.lease import Lease
from sparkdl_runner.tracking.run.server import is_databricks, why_unreachable
from sparkdl_runner.tracking.run.server_calls import WITHOUT, ServerCalls
from sparkdl_runner.tracking.settings import Tracking

LEAST_VERSION = (2, 13)
# Without it, MLflow's pages take an experiment for one with language models.
KIND_TAG = {"mlflow.experimentKind": "custom_model_development"}
_SOURCE_TAGS = ("mlflow.source.", "mlflow.databricks.")
_SET_UP_BY = (
    "MLFLOW_TRACKING_URI",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "DATABRICKS_RUNTIME_VERSION",
)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open run."""

    client: Any
    """An ``MlflowClient`` of the run's store."""
    uri: str
    run: Any
    """The ``mlflow.entities.Run``, as it was when it was opened."""
    is_ours: bool
    """Whether to end it: not where the caller has it open already."""
    first_attempt: int
    """The number of the next attempt; not 0 where the run was resumed."""
    timeout_seconds: float = Tracking.opening_timeout_seconds
    """How long an answer may take while the driver waits for it."""

    @property
    def source_tags(self) -> dict[str, str]:
        """MLflow's tags of the program and its user, which in a rank would be the worker's."""
        return {
            name: text
            for name, text in self.run.data.tags.items()
            if name == "mlflow.user" or name.startswith(_SOURCE_TAGS)
        }

    def address(self, redact: Redactor, databricks_host: str | None) -> str:
        """Where to look at the run: a page, or a store and the command that shows it."""
        info, uri = self.run.info, redact(self.uri)
        page = f"experiments/{info.experiment_id}/runs/{info.run_id}"
        if uri.startswith(("http://", "https://")):
            return f"{uri.rstrip('/')}/#/{page}"
        if databricks_host:
            return f"{databricks_host.rstrip('/')}/ml/{page}"
        return f"{info.run_id} in {uri} (mlflow ui --backend-store-uri {uri})"


def is_set_up() -> bool:
    """Whether whoever uses this process has set MLflow up, so that runs are wanted.

    Where nobody has asked for a run, an MLflow that is too old is only a warning.
    """
    if any(os.environ.get(name) for name in _SET_UP_BY):
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
        print(f"sparkdl_runner: {wrong}: this training has no MLflow run.", file=sys.stderr)
    return wrong is None


def open_run(settings: Tracking, lease: Lease, name: str | None = None) -> Opened:
    """Opens the run that ``settings`` ask for.

    Args:
        settings: Which run it is to be.
        lease: Of the driver on the run.
        name: What a new run is called that ``settings`` give no name; None for MLflow's choice.

    Raises:
        LaunchError: MLflow is missing or old, its server does not answer, hangs or refuses, or the
            run is not there, deleted, or active elsewhere.
    """
    uri = check_store(settings)
    import mlflow

    make_default_store(settings)
    call = ServerCalls(uri=uri, timeout_seconds=settings.opening_timeout_seconds)
    client = call(lambda: mlflow.MlflowClient(tracking_uri=uri), "make a client")
    if settings.run_id is not None:
        return _resume(mlflow, client, call, settings.run_id, lease)
    # A run or experiment that is active in another store is not in this one.
    is_global = uri == mlflow.get_tracking_uri()
    active = mlflow.active_run() if is_global else None
    experiment_id = _experiment(client, settings.experiment, active, call, is_global=is_global)
    # Not in another thread: a notebook's tags are those of the thread that runs it.
    tags = _context_tags(active)
    name = settings.run_name or name
    run = call(
        lambda: client.create_run(experiment_id, tags=tags, run_name=name),
        f"make a run in experiment {experiment_id}",
        # Nobody else would end it.
        when_late=lambda late: client.set_terminated(late.info.run_id, "FAILED"),
    )
    return Opened(
        client=client,
        uri=uri,
        run=run,
        is_ours=True,
        first_attempt=0,
        timeout_seconds=call.timeout_seconds,
    )


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
    if wrong := why_unreachable(uri):
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
    found = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if found >= LEAST_VERSION:
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


def _resume(mlflow: Any, client: Any, call: ServerCalls, run_id: str, lease: Lease) -> Opened:
    what = f"resume run {run_id}"
    run = call(lambda: client.get_run(run_id), what)
    if run.info.lifecycle_stage == "deleted":
        raise LaunchError(
            f"The MLflow run {run_id} at {Redactor()(call.uri)} was deleted. Restore it "
            "(mlflow runs restore), or leave run_id out for a new one."
        )
    active = mlflow.active_run()
    is_joined = active is not None and active.info.run_id == run_id
    other = lease.held_by_another(run.data.tags)
    if run.info.status == "RUNNING" and other is not None:
        raise LaunchError(
            f"The MLflow run {run_id} is active elsewhere: {other}. End that training, or wait "
            "until it is over; one that died is known as such after 90 s."
        )
    if not is_joined:
        call(
            lambda: client.update_run(run_id, status="RUNNING"),
            what,
            when_late=lambda _: client.update_run(run_id, status=run.info.status),
        )
    last = run.data.tags.get(ATTEMPT_TAG, "")
    return Opened(
        client=client,
        uri=call.uri,
        run=run,
        is_ours=not is_joined,
        first_attempt=int(last) + 1 if last.isdecimal() else 0,
        timeout_seconds=call.timeout_seconds,
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
    found = call(lambda: client.get_experiment_by_name(name), f"find experiment {name!r}")
    if found is None:
        return str(
            call(
                lambda: client.create_experiment(name, tags=KIND_TAG),
                f"make experiment {name!r}",
            )
        )
    if found.lifecycle_stage == "deleted":
        raise LaunchError(
            f"The MLflow experiment {name!r} at {Redactor()(call.uri)} was deleted. Restore it, or "
            "take another."
        )
    return str(found.experiment_id)


def _context_tags(active: Any) -> dict[str, str]:
    """The tags that MLflow gives to every run, and the parent's."""
    from mlflow.tracking.context import registry
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    own = {MLFLOW_PARENT_RUN_ID: active.info.run_id} if active is not None else {}
    return dict(registry.resolve_tags(own))

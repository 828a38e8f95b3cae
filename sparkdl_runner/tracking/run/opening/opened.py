"""Opens an MLflow run, or resumes one; errors are one sentence."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkdl_runner.base.foreign_name import is_run_id
from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.tracking.entries import ATTEMPT_TAG
from sparkdl_runner.tracking.run.opening.lease import Holder, Lease
from sparkdl_runner.tracking.run.opening.notebook_source import notebook_tags
from sparkdl_runner.tracking.run.opening.run_name import RunName
from sparkdl_runner.tracking.run.opening.store import Store, connect, open_store
from sparkdl_runner.tracking.run.server_calls import ServerCalls
from sparkdl_runner.tracking.settings import Tracking

PARENT_TAG = "mlflow.parentRunId"
_SOURCE_TAGS = ("mlflow.source.", "mlflow.databricks.")


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

    def __post_init__(self) -> None:
        run_id = self.run.info.run_id
        if not is_run_id(run_id):  # It names files of ours.
            raise LaunchError(
                f"MLflow at {Redactor()(self.uri)} calls a run {run_id!r:.100}. A run's id is "
                "letters, digits and hyphens: this is no server of MLflow's, or not one to trust. "
                "Check the tracking URI."
            )

    @property
    def source_tags(self) -> dict[str, str]:
        """MLflow's tags of the program and its user, which in a rank would be the worker's."""
        return {
            name: text
            for name, text in self.run.data.tags.items()
            if name == "mlflow.user" or name.startswith(_SOURCE_TAGS)
        }

    def set_status(self, status: str, ended_at: float | None = None) -> None:
        """Ends the run, if that is ours to do: now, or at an earlier time in seconds."""
        if self.is_ours:
            at = None if ended_at is None else int(1000 * ended_at)
            self.client.set_terminated(self.run.info.run_id, status, at)

    def address(self, redact: Redactor, databricks_host: str | None) -> str:
        """The address of the run for people: a page, or a store and the command that shows it."""
        info, uri = self.run.info, redact(self.uri)
        page = f"experiments/{info.experiment_id}/runs/{info.run_id}"
        if uri.startswith(("http://", "https://")):
            return f"{uri.rstrip('/')}/#/{page}"
        if databricks_host:
            return f"{databricks_host.rstrip('/')}/ml/{page}"
        return f"{info.run_id} in {uri} (mlflow ui --backend-store-uri {uri})"


def open_run(settings: Tracking, lease: Lease, name: RunName | None = None) -> Opened:
    """Opens the run that ``settings`` ask for.

    Args:
        settings: Which run it is to be.
        lease: Of the driver on the run.
        name: Of a new run, where they give none; None for MLflow's choice.

    Raises:
        LaunchError: MLflow is missing or old, its server does not answer, hangs or refuses, or the
            run is not there, deleted, or active elsewhere.
    """
    if settings.run_id is not None:
        client, call = connect(settings)
        return resume(client, call, settings.run_id, lease)
    from_the_first = (PARENT_TAG, *_SOURCE_TAGS)
    tags = {key: text for key, text in settings.tags.items() if key.startswith(from_the_first)}
    store = open_store(settings, below=None if name is None else name.below)
    run_name = settings.run_name or (None if name is None else name.in_store(store))
    return create_run(store, run_name, tags)


def create_run(store: Store, name: str | None, tags: Mapping[str, str] | None = None) -> Opened:
    """Makes a run.

    Args:
        store: Where.
        name: What it is called; None for MLflow's choice.
        tags: To be set from its first moment on, besides MLflow's own.

    Raises:
        LaunchError: MLflow refuses, or does not answer.
    """
    client, experiment_id = store.client, store.experiment_id
    # In this thread: only the notebook's own thread has its tags.
    tags = {**_context_tags(store.active), **(tags or {})}
    run = store.call(
        lambda: client.create_run(experiment_id, tags=tags, run_name=name),
        f"make a run in experiment {experiment_id}",
        # No other process would end this run.
        when_late=lambda late: client.set_terminated(late.info.run_id, "FAILED"),
    )
    return Opened(
        client=client,
        uri=store.call.uri,
        run=run,
        is_ours=True,
        first_attempt=0,
        timeout_seconds=store.call.timeout_seconds,
    )


def resume(client: Any, call: ServerCalls, run_id: str, lease: Lease) -> Opened:
    """Opens a run once more.

    Raises:
        LaunchError: It is not there, deleted, or active elsewhere; or MLflow does not answer.
    """
    import mlflow

    what = f"resume run {run_id}"
    run = call(lambda: client.get_run(run_id), what)
    if run.info.lifecycle_stage == "deleted":
        raise LaunchError(
            f"The MLflow run {run_id} at {Redactor()(call.uri)} was deleted. Restore it "
            "(mlflow runs restore), or leave run_id out for a new one."
        )
    active = mlflow.active_run()
    is_joined = active is not None and active.info.run_id == run_id
    other = None
    if run.info.status == "RUNNING":
        look = partial(client.get_run, run_id)
        other = lease.wait_for_sign(
            run.data.tags, lambda: call(look, what).data.tags, partial(_tell_wait, run_id)
        )
    if other is not None:
        raise LaunchError(
            f"The MLflow run {run_id} is active elsewhere: {other}. End that training, or wait "
            f"until it is over; one that died is known as such after {other.seconds:g} s."
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


def _tell_wait(run_id: str, holder: Holder) -> None:
    tell(
        f"MLflow run {run_id} is held: {holder}. If it does not show itself for "
        f"{holder.seconds:g} s, it is taken for lost, and this one goes on.",
        sys.stdout,
    )


def _context_tags(active: Any) -> dict[str, str]:
    """The tags that MLflow gives to every run, and the parent's."""
    from mlflow.tracking.context import registry

    own = {PARENT_TAG: active.info.run_id} if active is not None else {}
    tags = registry.resolve_tags(own)
    return {**tags, **notebook_tags(tags)}

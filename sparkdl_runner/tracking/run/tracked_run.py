"""One training's MLflow run, as the driver keeps it, from before the first slot to the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from sparkdl_runner.errors import LaunchError, RunCancelledError
from sparkdl_runner.hooks.reports import Reports
from sparkdl_runner.private_folder import private_folder
from sparkdl_runner.redaction import Redactor, secrets_of
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.rank_run import NAME_TAG, RunTicket
from sparkdl_runner.tracking.report.note import NOTE_TAG, may_replace, note
from sparkdl_runner.tracking.report.page import Attempt, Story
from sparkdl_runner.tracking.report.performance import host_entries
from sparkdl_runner.tracking.report.run_folder import RunFolder
from sparkdl_runner.tracking.run import datasets
from sparkdl_runner.tracking.run import parameters_and_tags as description
from sparkdl_runner.tracking.run.deadline import problem_within
from sparkdl_runner.tracking.run.delivery import Delivery
from sparkdl_runner.tracking.run.earlier_values import Past
from sparkdl_runner.tracking.run.journal import Journal
from sparkdl_runner.tracking.run.lease import RENEW_SECONDS, Lease
from sparkdl_runner.tracking.run.model_pages import complete_models
from sparkdl_runner.tracking.run.opening import ATTEMPT_TAG, Opened, open_run
from sparkdl_runner.tracking.run.ranks_heard import RanksHeard
from sparkdl_runner.tracking.run.server import (
    REQUEST_SECONDS,
    TrackingServer,
    credentials,
    is_remote,
    wait_for_server,
)
from sparkdl_runner.tracking.run.spool import Spool
from sparkdl_runner.tracking.settings import Tracking
from sparkdl_runner.world import World

# How often is told how fast ranks are: often at first, and less and less in a long training.
FIRST_TELL_SECONDS, MOST_TELL_SECONDS = 2.0, 60.0
TELLS_BEFORE_SLOWER = 200
# How long our own parameters wait for those of the function, which a page then shows first.
OWN_SECONDS = 30.0
UPLOAD_SECONDS = 600.0
# What MLflow notes of who runs a program, which in a rank would be the worker's own file.
_SOURCE_TAGS = ("mlflow.source.", "mlflow.databricks.")

_held: set[str] = set()
"""The runs that threads of this driver hold."""


class TrackedRun(Reports):
    """The run while ranks train: opened by ``open``, always ended by ``close``.

    What ranks tell goes through a journal, which keeps it free of repetitions, and a spool on disk
    to MLflow; so neither ranks nor the driver ever wait for a tracking server.
    """

    def __init__(self, settings: Tracking, opened: Opened, lease: Lease) -> None:
        self._settings = settings
        self._opened = opened
        self._lease = lease
        self.run_id: str = opened.run.info.run_id
        self._run_name: str = opened.run.info.run_name or self.run_id
        self._credentials = credentials(opened.uri)
        self._redact = Redactor(secrets_of() + secrets_of(self._credentials))
        self._spool = Spool(private_folder("sparkdl_runner-mlflow") / f"{self.run_id}.jsonl")
        # What an earlier driver could not deliver is part of what the run has been told.
        try:
            past = Past.of(opened, self._spool.waiting())
        except BaseException:
            self._spool.close()
            raise
        self.first_attempt = past.attempts
        self._journal = Journal(past.params, past.last_steps, self._redact)
        self._folder = RunFolder()
        self._delivery = Delivery(self._spool, TrackingServer(opened.uri, self.run_id))
        self._ranks = RanksHeard()
        self._attempts: list[Attempt] = []
        self._own: list[Entry] = []
        """Parameters that nobody but us asked for, and that have yet to be said."""
        self._problems: list[str] = []
        self._told_of_trouble = 0.0
        self._closed = threading.Event()
        self._teller = threading.Thread(target=self._tell, name="sparkdl-run", daemon=True)

    @classmethod
    def open(cls, settings: Tracking) -> TrackedRun:
        """Opens or resumes the run and shows where it is.

        Raises:
            LaunchError: See ``opening.open_run``.
        """
        if settings.run_id in _held:
            raise LaunchError(
                f"The MLflow run {settings.run_id} is active in another thread of this "
                "driver. Wait until that training is over."
            )
        lease = Lease()
        opened = open_run(settings, lease)
        try:
            run = cls(settings, opened, lease)
        except BaseException as error:
            if opened.is_ours:
                end = partial(opened.client.set_terminated, opened.run.info.run_id, "FAILED")
                problem_within(end, REQUEST_SECONDS)
            if isinstance(error, OSError):
                raise LaunchError(
                    f"The driver cannot keep metrics in its temporary folder: {error}. Make room, "
                    "or set TMPDIR."
                ) from error
            raise
        _held.add(run.run_id)
        run._say(lease.entries())
        run._teller.start()
        _show(f"MLflow {run.where}")
        return run

    @property
    def where(self) -> str:
        """The run's name, and how to look at it."""
        info = self._opened.run.info
        uri = self._redact(self._opened.uri)
        page = f"#/experiments/{info.experiment_id}/runs/{info.run_id}"
        if uri.startswith(("http://", "https://")):
            place = f"{uri.rstrip('/')}/{page}"
        elif host := self._credentials.get("DATABRICKS_HOST"):
            place = f"{host.rstrip('/')}/ml/experiments/{info.experiment_id}/runs/{info.run_id}"
        else:
            place = f"{info.run_id} in {uri} (mlflow ui --backend-store-uri {uri})"
        return f"run {self._run_name}: {place}"

    def describe(
        self,
        *,
        num_proc: int,
        backend: str,
        settings: Mapping[str, Any],
        converters: Mapping[str, Any],
        application_id: str | None,
    ) -> None:
        """Logs what is known before ranks start: parameters, tags, data sets."""
        self._journal.begin_attempt(self.first_attempt)
        self._own += description.parameters(num_proc=num_proc, backend=backend, settings=settings)
        self._say(description.tags(self._settings.tags, application_id))
        for name, converter in converters.items():
            # A page without it is better than no training.
            problem = f"the data set {name!r} is not in MLflow"
            self._in_time(problem, partial(self._log_input, name, converter), REQUEST_SECONDS)

    def _log_input(self, name: str, converter: Any) -> None:
        described = datasets.describe(name, converter)
        self._opened.client.log_inputs(self.run_id, datasets=[described])

    def ticket(self, *, single_host: bool) -> RunTicket:
        """What ranks are told of the run.

        Args:
            single_host: Whether all ranks are on this host, and so reach a store that is a file.
        """
        info = self._opened.run.info
        reaches = single_host or is_remote(self._opened.uri)
        return RunTicket(
            run_id=self.run_id,
            run_name=self._run_name,
            experiment_id=info.experiment_id,
            artifact_uri=info.artifact_uri,
            tracking_uri=self._opened.uri,
            credentials=self._credentials if reaches else {},
            is_named=self._settings.run_name is not None,
            source={
                name: text
                for name, text in self._opened.run.data.tags.items()
                if name == "mlflow.user" or name.startswith(_SOURCE_TAGS)
            },
            store_is_elsewhere=not reaches,
            other_ranks=self._settings.other_ranks,
            system_metrics=self._settings.system_metrics,
            trace_steps=self._settings.torch_profiler,
            horovod_timeline=self._settings.horovod_timeline,
        )

    def begin_attempt(self, attempt: int) -> None:
        """Says that ranks are about to start."""
        self._ranks.begin_attempt()
        self._journal.begin_attempt(attempt)
        self._attempts.append(Attempt(number=attempt, began_at=time.time()))
        self._say([["tag", ATTEMPT_TAG, str(attempt)]])

    def end_attempt(self, error: BaseException | None) -> None:
        """Says how the ranks ended: all well if there is no error."""
        attempt = self._attempts[-1]
        attempt.ended_at = time.time()
        attempt.error = "" if error is None else self._redact(str(error) or type(error).__name__)
        attempt.step = self._ranks.step
        tag = f"{ATTEMPT_TAG}.{attempt.number}.ended_by"
        self._say([["tag", tag, attempt.ended_by]])
        self._folder.keep_attempt(attempt)

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        self._own += self._ranks.hear(world, report)
        entries = report["entries"]
        if entries:
            self._say(entries)
            names = [entry[2] for entry in entries if entry[:2] == ["tag", NAME_TAG]]
            self._run_name = names[-1] if names else self._run_name
        if any(entry[0] in ("param", "metric") for entry in entries):
            self._say_own()

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """See ``Reports.host_metrics``."""
        began_at = self._opened.run.info.start_time / 1000
        self._spool.put(host_entries(world, values, began_at=began_at, now=time.time()))

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """See ``Reports.file_part``."""
        try:
            self._folder.keep_part(world, name, data, is_first=is_first)
        except OSError as error:
            self._problems.append(f"{name} of rank {world.rank} could not be kept: {error}")

    def close(self, error: BaseException | None) -> None:
        """Ends the run: delivers what waits, makes the report, sets the status.

        Raises nothing but what interrupts it.

        Args:
            error: What ended the training; None if it went well.
        """
        try:
            self._close(error)
        except Exception as problem:  # The training's own end must not be hidden by this.
            self._problems.append(f"the run could not be ended in order: {_line(problem)}")
        except BaseException:  # Somebody is tired of waiting.
            self._terminate("KILLED")
            raise
        finally:
            self._closed.set()
            _held.discard(self.run_id)
            self._delivery.close(0)
            for told in [*self._problems, *self._journal.problems, *self._delivery.refused]:
                _show(f"MLflow: {self._redact(told)}.")
            # Once more, below all that ranks have said.
            _show(f"MLflow {self.where}")

    def _close(self, error: BaseException | None) -> None:
        seconds, folder = self._settings.delivery_timeout_seconds, str(self._folder.path)
        deadline = time.monotonic() + seconds
        self._closed.set()
        if self._teller.is_alive():
            self._teller.join()
        self._say_own()
        self._say([*self._ranks.entries(), *self._ranks.last_entries()])
        wrong = wait_for_server(self._opened.uri, seconds)
        left = self._delivery.close(max(1.0, deadline - time.monotonic()) if wrong is None else 0)
        if self._spool.problem:
            self._problems.append(self._spool.problem)
        if left:
            self._problems.append(
                f"{left} metrics, parameters and tags of run {self.run_id} were not delivered in "
                f"{seconds:g} s ({wrong or self._delivery.trouble}); they are in "
                f"{self._spool.path}, from where resuming the run on this host delivers them"
            )
        if wrong is not None:
            self._problems.append(
                f"run {self.run_id} could not be ended and its files are left in {folder}"
            )
            return
        left_here = f"logs and report are not in MLflow, but in {folder}"
        client = self._opened.client
        self._in_time(
            "pages of models lack parameters and metrics",
            lambda: complete_models(client, self.run_id),
            seconds,
        )
        if self._settings.report:
            self._in_time("there is no report", lambda: self._write_report(error), seconds)
        if self._in_time(
            left_here, lambda: client.log_artifacts(self.run_id, folder), UPLOAD_SECONDS
        ):
            self._folder.remove()
        status = "FINISHED" if error is None else "FAILED"
        if isinstance(error, (RunCancelledError, KeyboardInterrupt)):
            status = "KILLED"
        self._terminate(status)

    def _terminate(self, status: str) -> None:
        if self._opened.is_ours:
            client = self._opened.client
            self._in_time(
                f"the run's status is not set to {status}",
                lambda: client.set_terminated(self.run_id, status),
                REQUEST_SECONDS,
            )

    def _in_time(self, problem: str, action: Callable[[], Any], seconds: float) -> bool:
        """Does something with MLflow in limited time, or notes what is missing without it."""
        wrong = problem_within(action, max(seconds, REQUEST_SECONDS))
        if wrong is not None:
            self._problems.append(f"{problem}: {wrong}")
        return wrong is None

    def _write_report(self, error: BaseException | None) -> None:
        client = self._opened.client
        run = client.get_run(self.run_id)
        story = Story.of(
            client=client,
            run=run,
            attempts=self._attempts,
            totals=self._ranks.totals(),
            error="" if error is None else self._redact(str(error) or type(error).__name__),
        )
        story.write(self._folder.path / "report")
        if may_replace(run.data.tags.get(NOTE_TAG, "")):
            client.set_tag(self.run_id, NOTE_TAG, note(story))

    def _say(self, entries: list[Entry]) -> None:
        self._spool.put(self._journal.admit(entries))

    def _say_own(self) -> None:
        own, self._own = self._own, []
        if own:
            self._say(own)

    def _tell(self) -> None:
        """Tells how fast ranks are, and that this driver lives."""
        began = time.monotonic()
        tell_at, renew_at = began + FIRST_TELL_SECONDS, began + RENEW_SECONDS
        while not self._closed.wait(1.0):
            if time.monotonic() >= began + OWN_SECONDS:
                self._say_own()
            if time.monotonic() >= tell_at:
                self._say(self._ranks.entries())
                pause = (time.monotonic() - began) / TELLS_BEFORE_SLOWER
                pause = min(max(pause, FIRST_TELL_SECONDS), MOST_TELL_SECONDS)
                tell_at = time.monotonic() + pause
            if time.monotonic() >= renew_at:
                renew_at += RENEW_SECONDS
                self._say(self._lease.entries())
            since = self._delivery.troubled_since
            if since is not None and self._trouble_is_new(since):
                _show(
                    "MLflow does not take what it is told "
                    f"({self._redact(self._delivery.trouble or '')}); training goes on, and it is "
                    "told again later."
                )

    def _trouble_is_new(self, since: float) -> bool:
        is_new = since != self._told_of_trouble
        self._told_of_trouble = since
        return is_new


def _show(text: str) -> None:
    """Says something to the person; whether anybody hears it must not matter."""
    with suppress(OSError, ValueError):
        print(f"sparkdl_runner: {text}", flush=True)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")

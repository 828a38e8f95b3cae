"""One training's MLflow run, as the driver keeps it, from before the first slot to the end."""

from __future__ import annotations

import html
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from sparkdl_runner.base.notebook import in_notebook, show_in_cell
from sparkdl_runner.base.private_folder import private_folder
from sparkdl_runner.base.redaction import Redactor, secrets_of
from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.base.time_limits import answer_within
from sparkdl_runner.errors import LaunchError, NotPicklableError
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.rank_run import NAME_TAG, RunTicket
from sparkdl_runner.tracking.report.performance import host_entries
from sparkdl_runner.tracking.report.run_folder import RunFolder
from sparkdl_runner.tracking.report.run_summary import (
    LOST_TAG,
    PREFLIGHT_TAG,
    RATES_TAG,
    SLOW_TAG,
    WARNING_TAG,
)
from sparkdl_runner.tracking.run import left_run, undelivered
from sparkdl_runner.tracking.run import parameters_and_tags as description
from sparkdl_runner.tracking.run.delivery import Delivery, TrackingServer
from sparkdl_runner.tracking.run.heartbeat import Heartbeat
from sparkdl_runner.tracking.run.journal import Journal, earlier_values
from sparkdl_runner.tracking.run.left_run import LeftRun
from sparkdl_runner.tracking.run.log_uploads import LogUploads
from sparkdl_runner.tracking.run.opening.lease import Lease, held_here, require_not_held
from sparkdl_runner.tracking.run.opening.named import NamedRun, returned_entry
from sparkdl_runner.tracking.run.opening.opened import Opened, open_run
from sparkdl_runner.tracking.run.opening.run_name import RunName
from sparkdl_runner.tracking.run.opening.run_start import start_run
from sparkdl_runner.tracking.run.opening.ticket import ticket_of
from sparkdl_runner.tracking.run.run_end import RunEnd, status_of
from sparkdl_runner.tracking.run.run_state import RunState
from sparkdl_runner.tracking.run.server import (
    REQUEST_SECONDS,
    credentials,
    wait_for_server,
)
from sparkdl_runner.tracking.run.server_calls import problem_within, reason_of
from sparkdl_runner.tracking.run.spool import SPOOLS, Spool
from sparkdl_runner.tracking.run.undelivered import Undelivered
from sparkdl_runner.tracking.settings import Tracking

# Our own parameters wait so long for those of the function, which MLflow's page then shows first.
OWN_SECONDS = 30.0
# Older stores hold so much in a tag.
_MOST_CHARACTERS = 5000
# With how many earlier runs hosts are compared.
_COMPARED_RUNS = 5


class TrackedRun(Reports):
    """The run while ranks train: opened by ``open``, always ended by ``close``.

    Entries go through a journal, which drops repetitions, and a spool on disk to MLflow, so that
    neither ranks nor the driver ever wait for a tracking server.
    """

    def __init__(
        self, settings: Tracking, opened: Opened, lease: Lease, secrets: Sequence[str] = ()
    ) -> None:
        self._settings = settings
        self._opened = opened
        self.run_id: str = opened.run.info.run_id
        self.client = opened.client
        self._credentials = credentials(opened.uri)
        self._redact = Redactor([*secrets_of(), *secrets_of(self._credentials), *secrets])
        self._spool = Spool(private_folder(SPOOLS) / f"{self.run_id}.jsonl")
        # Entries that an earlier driver could not deliver count as delivered here.
        try:
            left_at = undelivered.spool_left(opened, self._spool, self._redact)
            params, last_steps, attempts = earlier_values(opened, self._spool.waiting())
        except BaseException:
            self._spool.close()
            raise
        self.first_attempt = attempts
        self._journal = Journal(params, last_steps, self._redact)
        self._folder = RunFolder()
        self._delivery = Delivery(self._spool, TrackingServer(opened.uri, self.run_id))
        self.state = RunState(
            opened.run.info.run_name or self.run_id, self._redact, opened, attempts
        )
        self._ranks, self._attempts = self.state.ranks, self.state.attempts
        self._undelivered = Undelivered(self.run_id, left_at)
        self._own: list[Entry] = []
        """Parameters of the package, not of the function, that wait to be logged."""
        self._opened_at = time.monotonic()
        self._problems: list[str] = []
        self._lost = 0
        """How many entries ranks had logged that never came."""
        self._left = LeftRun(tracking_uri=opened.uri, lease=lease.own.lease, is_ours=opened.is_ours)
        self._left.write(self.run_id)
        self._end = RunEnd(opened, self._folder, self._problems)
        self._log_uploads = LogUploads(opened, self._folder.path)
        self._heartbeat = Heartbeat(
            self._ranks,
            self._attempts,
            lease,
            self._delivery,
            log=self._log_in_background,
            report_trouble=self._report_trouble,
            keep=self._keep_beside_checkpoints,
        )

    @classmethod
    def open(
        cls,
        settings: Tracking,
        named: NamedRun | None = None,
        secrets: Sequence[str] = (),
        name: RunName | None = None,
    ) -> TrackedRun:
        """Opens or resumes the run, or that of ``named``, and shows where it is.

        Args:
            settings: Which run it is to be.
            named: The run of a training that has a name.
            secrets: What the run must not show, besides those of the driver's environment.
            name: How to call a new run that neither of them names.

        Raises:
            LaunchError: As of ``opening.open_run`` and ``NamedRun.open``.
        """
        require_not_held(settings.run_id if named is None else named.run_id)
        lease = Lease(settings.lease_seconds) if named is None else named.lease
        opened = open_run(settings, lease, name) if named is None else named.open()
        try:
            run = cls(settings, opened, lease, secrets)
        except BaseException as error:
            problem_within(partial(opened.set_status, "FAILED"), REQUEST_SECONDS)
            if isinstance(error, OSError):
                raise LaunchError(
                    f"The driver cannot keep metrics in its temporary folder: {error}. Make room, "
                    "or set TMPDIR."
                ) from error
            raise
        held_here.add(run.run_id)
        run._log([*lease.entries(), *(named.entries() if named is not None else ())])
        run._heartbeat.start()
        run._log_uploads.start()
        run._show_address()
        return run

    def _keep_beside_checkpoints(self) -> None:
        self._undelivered.keep(self._spool.waiting(), self._ranks.checkpoint)

    def describe(
        self,
        *,
        arguments: Mapping[str, Any],
        settings: Mapping[str, Any],
        converters: Mapping[str, Any],
        application_id: str | None,
    ) -> None:
        """Logs what is known before ranks start: parameters, tags, data sets.

        Args:
            arguments: Of the function, by name.
            settings: Of the runner: what it was asked for, and what is not as by default.
            converters: The conversions that the function uses, by what it calls them.
            application_id: Spark's.
        """
        self._journal.begin_attempt(self.first_attempt)
        self._own += description.parameters(arguments)
        self._log(description.tags(self._settings.tags, settings, application_id))
        start_run(self._opened, converters, self._end, self._problems)

    def ticket(self, *, single_host: bool) -> RunTicket:
        """The facts about the run that ranks need.

        Args:
            single_host: Whether all ranks are on this host, and so reach a store that is a file.
        """
        return ticket_of(
            self._opened,
            self._settings,
            run_name=self.state.seen.name,
            credentials=self._credentials,
            single_host=single_host,
        )

    def begin_attempt(self, attempt: int) -> None:
        """See ``Reports.begin_attempt``."""
        self._journal.begin_attempt(attempt)
        self._log(self.state.new_attempt(attempt))

    def end_attempt(self, error: BaseException | None, growth: str = "") -> None:
        """See ``Reports.end_attempt``."""
        if isinstance(error, NotPicklableError) and error.kept is not None:
            with suppress(OSError):  # The file is on this host, and the error says so.
                place = self._folder.keep_value(error.kept)
                error.add_note(f"It goes to the MLflow run's artifacts as well: {place}.")
        self._log(self._attempts.end(self.state.text_of(error), growth))
        self._folder.keep_attempt(self._attempts.own[-1])

    def printed(self, world: World, lines: list[str]) -> bool:
        """See ``Reports.printed``."""
        return self.state.printed(world, lines)

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        self._own += self.state.add(world, report)
        if dropped := report.get("dropped"):
            self._count_lost(dropped)

    def logged(self, world: World, entries: list[Entry]) -> None:
        """See ``Reports.logged``."""
        self._log(entries)
        names = [entry[2] for entry in entries if entry[:2] == ["tag", NAME_TAG]]
        self.state.seen.name = names[-1] if names else self.state.seen.name
        self.state.logged(world, entries)
        if any(entry[0] in ("param", "metric") for entry in entries):
            self._log_own()

    def unsent(self, world: World, count: int) -> None:
        """See ``Reports.unsent``."""
        self._count_lost(count)
        self._problems.append(
            f"{count:,} metrics, parameters and tags that rank {world.rank} had logged are lost, "
            "since it could not send them within shutdown_grace_seconds after its function had "
            "raised: raise RunConfig.shutdown_grace_seconds"
        )

    def _count_lost(self, count: int) -> None:
        self._lost += count
        text = f"{self._lost:,} metrics, parameters and tags that ranks had logged"
        self._log([["tag", LOST_TAG, text]])

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """See ``Reports.host_metrics``."""
        self.state.host_metrics(world, values)
        began_at = self._opened.run.info.start_time / 1000
        self._log(host_entries(world, values, began_at=began_at, now=time.time()))

    def file_part(self, world: World, name: str, data: bytes, *, is_first: bool) -> None:
        """See ``Reports.file_part``."""
        try:
            self._folder.keep_part(world, name, data, is_first=is_first)
        except OSError as error:
            problem = f"a part of {name} of rank {world.rank} could not be kept: {error}"
            if problem not in self._problems:
                self._problems.append(problem)

    def warn(self, warning: str) -> None:
        """Keeps a warning that all ranks of an attempt gave cause for, for the run's page."""
        self._log([["tag", WARNING_TAG, warning]])

    def slow_ranks(self, text: str) -> None:
        """See ``Reports.slow_ranks``."""
        self.state.slow_ranks(text)
        self._log([["tag", SLOW_TAG, text]])

    def preflight(self, report: dict[str, Any]) -> None:
        """See ``Reports.preflight``."""
        self.state.preflight(report)
        text, rates = "\n".join(report["lines"])[:_MOST_CHARACTERS], json.dumps(report["rates"])
        self._log([["tag", PREFLIGHT_TAG, text]])
        if len(rates) <= _MOST_CHARACTERS:
            self._log([["tag", RATES_TAG, rates]])

    def earlier_rates(self) -> list[dict[str, float]]:
        """The rates of hosts of this experiment's last preflights; none if MLflow is slow."""

        def search() -> list[dict[str, float]]:
            found = self.client.search_runs(
                [self._opened.run.info.experiment_id],
                f"tags.`{RATES_TAG}` LIKE '{{%'",
                max_results=_COMPARED_RUNS,
            )
            return [json.loads(run.data.tags[RATES_TAG]) for run in found]

        return answer_within(REQUEST_SECONDS, search) or []

    def keep_value(self, value: Any) -> None:
        """Keeps the value of a training with a name, for later calls."""
        self._log([returned_entry(value)])

    def close(self, error: BaseException | None, stopped: str = "") -> None:
        """Ends the run: delivers what waits, makes the report, sets the status.

        Raises nothing but what interrupts it.

        Args:
            error: What ended the training; None if it went well.
            stopped: Why it was asked to end early, if it was. Its run then is no finished one.
        """
        try:
            self._close(error, stopped)
        except Exception as problem:  # The training's own end must not be hidden by this.
            self._problems.append(f"the run could not be ended in order: {reason_of(problem)}")
        except BaseException:  # Interrupted while it waits for MLflow.
            self._end.set_status("KILLED")
            raise
        finally:
            self._heartbeat.stop()
            self._log_uploads.stop(0)
            held_here.discard(self.run_id)
            if not self._delivery.close(0) and not self._left.status:
                left_run.forget(self.run_id)
            for warning in [*self._problems, *self._journal.problems, *self._delivery.refused]:
                _show(f"MLflow: {self._redact(warning)}.")
            if time_use := self._attempts.sentence():
                _show(f"{self.state.seen.name}: {time_use}.")

    def _close(self, error: BaseException | None, stopped: str) -> None:
        seconds = self._settings.delivery_timeout_seconds
        deadline = time.monotonic() + seconds
        self._heartbeat.stop()
        self._log_uploads.stop(0)  # What it uploads may come meanwhile.
        self._log_own()
        self._log(self._ranks.last_entries())
        if stopped:
            self._log([["tag", "sparkdl_runner.stopped_by", stopped]])
        wrong = wait_for_server(self._opened.uri, seconds)
        if wrong is not None or self._undelivered.url:
            self._keep_beside_checkpoints()
        left = self._delivery.close(max(1.0, deadline - time.monotonic()) if wrong is None else 0)
        if self._spool.problem:
            self._problems.append(self._spool.problem)
        if left:
            where = self._undelivered.url
            self._problems.append(
                f"{left} metrics, parameters and tags of run {self.run_id} were not delivered in "
                f"{seconds:g} s ({wrong or self._delivery.trouble}); they are in "
                f"{self._spool.path}{f' and {where}' if where else ''}, from where resuming the "
                "run, or sparkdl-runner deliver, delivers them"
            )
        else:
            self._undelivered.forget()
        status = status_of(error, stopped)
        self.state.end(status, error, stopped)
        summary = self.state.summary() if self._settings.report else None
        report = None if summary is None else asdict(summary)
        ended = replace(self._left, status=status, ended_at=time.time(), report=report)
        if wrong is not None:
            self._left = replace(ended, folder=str(self._folder.path))
            self._left.write(self.run_id)
            self._problems.append(
                f"run {self.run_id} could not be ended and its files are left in "
                f"{self._folder.path}; sparkdl-runner deliver sends them and ends the run"
            )
            return
        summarize = None if summary is None else summary.of
        self._log_uploads.stop(max(1.0, deadline - time.monotonic()))
        self._end.finish(ended.status, summarize, seconds)

    def _log(self, entries: list[Entry]) -> None:
        self._spool.put(self._journal.admit(entries))

    def _log_own(self) -> None:
        own, self._own = self._own, []
        # A parameter that the function logged itself wins over an argument of that name.
        own = [entry for entry in own if not self._journal.is_set(entry)]
        if own:
            self._log(own)

    def _log_in_background(self, entries: list[Entry]) -> None:
        if time.monotonic() >= self._opened_at + OWN_SECONDS:
            self._log_own()
        self._log(entries)

    def _show_address(self) -> None:
        address = self._opened.address(self._redact, self._credentials.get("DATABRICKS_HOST"))
        text = f"MLflow run {self.state.seen.name}: {address}"
        if address.startswith(("http://", "https://")) and in_notebook():
            name, page = html.escape(self.state.seen.name), html.escape(address)
            link = f'MLflow run <a href="{page}" target="_blank">{name}</a>'
            with suppress(Exception):  # A notebook that shows no HTML gets the line.
                show_in_cell({"text/html": link, "text/plain": text})
                return
        _show(text)

    def _report_trouble(self, trouble: str) -> None:
        _show(
            f"MLflow refuses or does not answer ({self._redact(trouble)}). Training continues; the "
            "entries are kept and sent again."
        )


def _show(text: str) -> None:
    """Prints a line; a closed stdout must not end a training."""
    tell(text, sys.stdout)

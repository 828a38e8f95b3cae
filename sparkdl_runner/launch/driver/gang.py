"""The ranks of one attempt, all or nothing: once one has failed, the others are ended."""

from __future__ import annotations

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.launch.backends import get_backend
from sparkdl_runner.launch.driver.diagnosis import with_failures
from sparkdl_runner.launch.driver.figures import ShownFigures
from sparkdl_runner.launch.driver.live_line import LiveLine
from sparkdl_runner.launch.driver.returned_values import ReturnedValues
from sparkdl_runner.launch.driver.watch import Verdict, Watch
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.channel import SETTLE_SECONDS
from sparkdl_runner.launch.wire.messages import (
    Failed,
    Figure,
    FilePart,
    HostMetrics,
    LoaderPlan,
    Logged,
    Message,
    Output,
    PlainValue,
    Progress,
    Replica,
    Stacks,
    Text,
    Unfinished,
    Unsent,
    ValuePart,
    ValueSent,
    VitalSigns,
)
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.launch.wire.rank_lines import write_lines
from sparkdl_runner.rank.loader_plans import LoaderPlans
from sparkdl_runner.rank.replicas import Replicas
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World


class Gang(ABC):
    """The ranks of one attempt, as the driver has them: shown, watched, and ended together.

    Each kind of launcher has its own, which says how ranks are started, ended, and asked for
    their stacks.

    Args:
        attempt: What they run.
        num_proc: How many there are.
        reports: Who takes what they tell of their training.
        show_output: Whether the lines that they print are shown, or only ``log_to_driver``'s.
    """

    def __init__(
        self, attempt: AttemptSpec, num_proc: int, reports: Sequence[Reports], *, show_output: bool
    ) -> None:
        self.attempt = attempt
        self.num_proc = num_proc
        self.backend = get_backend(attempt.backend)
        self.failures: list[Outcome] = []
        self.watch = Watch(
            config=attempt.config,
            backend=self.backend,
            num_proc=num_proc,
            ask_stacks=self.ask_stacks,
            on_verdict=self.act_on,
            lost_slots=self.lost_slots,
        )
        self._show_output = show_output
        self._live_line = LiveLine()
        self._figures = ShownFigures(are_kept=attempt.ticket is not None)
        self._reports = reports
        self._has_complained = False
        self._plans = LoaderPlans()
        self._replicas = Replicas()
        self._values = ReturnedValues(attempt.run)
        self._ending = threading.Lock()
        self._timer: threading.Timer | None = None
        for taker in reports:
            taker.begin(self.cancel)

    @abstractmethod
    def run(self) -> list[Outcome]:
        """Starts all ranks and waits for their ends; see ``Launcher.run``."""

    @abstractmethod
    def end_ranks(self) -> None:
        """Ends every rank that still runs; called once at most, from any thread."""

    @abstractmethod
    def request_stop(self, reason: str) -> None:
        """Asks the functions to end by themselves; called from any thread, also before ``run``."""

    @abstractmethod
    def ask_stacks(self) -> dict[int, Stacks]:
        """The Python stacks of all ranks that answer, by rank."""

    def lost_slots(self, there: int, seconds: float) -> str | None:
        """Why the ranks will not start; None if they may. See ``Watch``."""
        return None

    def take(self, world: World, message: Message) -> None:
        """Hands a message of a rank to whom it concerns; see ``Receiver.take``."""
        match message:
            case Output(lines):
                shown = False
                with self._tolerance():
                    shown = any(taker.printed(world, lines) for taker in self._reports)
                if self._show_output and not shown:
                    write_lines(sys.stdout, world, lines)
            case Unfinished(text):
                if self._show_output:
                    self._live_line.show(world, text)
            case Text(text):
                write_lines(sys.stdout, world, [text])
            case Failed(outcome):
                self.failed(outcome)
            case VitalSigns():
                self.watch.vital_signs(world, message)
            case Progress(text) | Logged(text):
                with self._tolerance():
                    self._reported(world, json.loads(text))
            case LoaderPlan(plan):
                if (difference := self._plans.compare(world, plan)) is not None:
                    self.failed(_differs(world, difference))
            case Replica(told):
                if (found := self._replicas.compare(world, told)) is not None:
                    self._differ(*found, ends_run=bool(told["ends_run"]))
            case Unsent(count):
                self._pass_on(lambda taker: taker.unsent(world, count))
            case HostMetrics(values):
                self._pass_on(lambda taker: taker.host_metrics(world, values))
            case FilePart(name, data, is_first):
                self._pass_on(lambda taker: taker.file_part(world, name, data, is_first=is_first))
            case Figure(_, png):
                with self._tolerance():
                    kept_as = self._figures.show(world, message)
                    if kept_as is not None:
                        self._pass_on(
                            lambda taker: taker.file_part(world, kept_as, png, is_first=True)
                        )
            case PlainValue(text):
                self._values.take(world, text)
            case ValuePart(data, is_first):
                self._values.take_part(world, data, is_first=is_first)

    def _differ(self, world: World, difference: str, *, ends_run: bool) -> None:
        if ends_run:
            self.failed(_differs(world, difference))
        else:
            tell(f"rank {world.rank} on {world.place} {difference}")

    def _reported(self, world: World, report: dict[str, Any]) -> None:
        entries = report.pop("entries")
        for problem in report["problems"]:
            write_lines(sys.stderr, world, [problem])
        self._pass_on(lambda taker: taker.progress(world, report))
        if entries:
            self._pass_on(lambda taker: taker.logged(world, entries))

    def _pass_on(self, give: Callable[[Reports], None]) -> None:
        for taker in self._reports:
            with self._tolerance():
                give(taker)

    @contextmanager
    def _tolerance(self) -> Iterator[None]:
        """Says once that a report was not understood: that must not end a training."""
        try:
            yield
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                tell(f"a report of the ranks was not understood: {error!r:.300}")

    def failed(self, outcome: Outcome) -> None:
        """Remembers a failure, and ends the other ranks.

        A mere communication error is a consequence, and its cause gets a moment to be heard
        first: an error should name the cause. So do others that raise what all raise at once.
        """
        self.failures.append(outcome)
        self.watch.ended(outcome.world)
        of_all = outcome.message.startswith(self.backend.raised_by_all)
        if len(self.failures) >= self.num_proc if of_all else not outcome.is_communication_error:
            self.stop()
        elif self._timer is None:
            self._timer = threading.Timer(SETTLE_SECONDS * (5 if of_all else 1), self.stop)
            self._timer.daemon = True
            self._timer.start()

    def cancel(self, world: World, reason: str) -> None:
        """Ends all ranks for a reason that a report of one of them gave; see ``Reports.begin``."""
        cancelled = Outcome(
            world=world, status=Status.CANCELLED, ended_at=time.time(), message=reason
        )
        self.failed(cancelled)

    def value_problem(self, world: World, sent: ValueSent) -> str | None:
        """See ``ReturnedValues.problem``."""
        return self._values.problem(world, sent)

    def act_on(self, verdict: Verdict) -> None:
        """Ends the ranks, since the watch has found something wrong."""
        for failure in verdict.failures:
            self.failed(failure)
        self.stop()

    def ends(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """How the ranks ended, as they told and as the driver saw it."""
        if all(outcome.status == Status.RETURNED for outcome in outcomes):
            # Once all ranks have ended, loaders without a counterpart in another rank are known.
            difference = self._plans.compare_left_over()
            if difference is not None:
                self.failures.append(_differs(*difference))
        return with_failures(self._values.with_files(outcomes), self.failures)

    @property
    def is_ending(self) -> bool:
        """Whether the ranks have been told to end."""
        return self._ending.locked()

    @property
    def will_restart(self) -> bool:
        """Whether the ranks are expected to be started again once they have ended."""
        user_errors = self.attempt.config.restart_user_errors
        allowed = [one.allows_restart(user_errors=user_errors) for one in self.failures]
        return self.attempt.may_restart and bool(allowed) and all(allowed)

    def stop(self) -> None:
        """Ends all ranks, unless that has been done."""
        if self._ending.acquire(blocking=False):
            self.end_ranks()

    def interrupt(self) -> None:
        """Has ``run`` end all ranks and return or raise; from any thread, also before ``run``."""
        self.stop()

    def close(self) -> None:
        """Stops watching, and forgets an end that is still to come."""
        self._live_line.erase()
        self._values.close()
        self.watch.close()
        if self._timer is not None:
            self._timer.cancel()


def _differs(world: World, difference: str) -> Outcome:
    return Outcome(world=world, status=Status.DIFFERS, ended_at=time.time(), message=difference)

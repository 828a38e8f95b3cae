"""The attempts of a run: whether, and when, all ranks are started once more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from sparkdl_runner.base.shown_text import first_line, tell
from sparkdl_runner.errors import (
    LaunchError,
    NotPicklableError,
    RanksApartError,
    ResultTooLargeError,
    RunCancelledError,
    RunnerError,
    WorkerFailedError,
)
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.apart import check_joined
from sparkdl_runner.launch.driver.diagnosis import result_of, root_cause
from sparkdl_runner.launch.driver.launcher import Launcher
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World

if TYPE_CHECKING:
    from sparkdl_runner.tracking.run.tracked_run import TrackedRun

MOST_BACKOFF_SECONDS = 60.0
# An attempt that lasts longer did not fail for what ended the one before.
LASTING_SECONDS = 60.0
_FINAL = (
    LaunchError,
    NotPicklableError,
    RanksApartError,
    ResultTooLargeError,
    RunCancelledError,
)


def run_with_restarts(
    launcher: Launcher,
    attempt: AttemptSpec,
    tracked: TrackedRun | None,
    shown: Sequence[Reports],
    stop: StopRequest,
) -> Any:
    """Runs attempts until one returns a value, or no other is worth while.

    Args:
        launcher: Runs each of them.
        attempt: The first.
        tracked: The MLflow run, if there is one: it learns of each attempt, and keeps the reports.
        shown: Who else takes the reports of the ranks.
        stop: Asks the function to end by itself.

    Returns:
        What the last attempt returned.

    Raises:
        RunnerError: What ended the last attempt.
    """
    saves = _Saves()
    reports = [saves, *([] if tracked is None else [tracked]), *shown]
    first, history = attempt.number, History()
    while True:
        stop.raise_if_cancelled()
        number, is_restart = first + history.attempts, history.attempts > 0
        attempt = replace(
            attempt,
            number=number,
            is_restart=is_restart,
            may_restart=history.restarts < attempt.config.max_restarts,
        )
        for one in reports:
            one.begin_attempt(attempt.number)
        if tracked is not None:
            ticket = tracked.ticket(single_host=launcher.is_single_host)
            attempt = replace(attempt, ticket=ticket)
        began, saved = time.monotonic(), saves.step
        try:
            outcomes = launcher.run(attempt, reports, stop)
            cause = root_cause(outcomes)
            growth = cause.message if cause is not None and cause.is_growth else ""
            value = None if growth else result_of(outcomes, attempt.run)
            apart = "" if growth else check_joined(outcomes, attempt.config)
        except BaseException as error:
            for one in reports:
                one.end_attempt(error)
            if not isinstance(error, RunnerError):
                raise
            stop.raise_if_cancelled()
            seconds = time.monotonic() - began
            ending = Ending(error=error, seconds=seconds, has_saved=saves.step > saved)
            decision = decide(history, ending, attempt.config)
            if decision is None:
                _raise_last(error, attempt)
            tell(decision.why)
            history = decision.history
            stop.cancelled.wait(decision.wait_seconds)
        else:
            for one in reports:
                one.end_attempt(None, growth)
            if tracked is not None and apart:
                tracked.warn(apart)
            if not growth:
                return value
            tell(growth)
            history = replace(history, attempts=history.attempts + 1)


@dataclass(frozen=True, kw_only=True)
class History:
    """The attempts so far, as far as they matter for the next one."""

    attempts: int = 0
    """How many have ended."""
    restarts: int = 0
    """Restarts that count against ``max_restarts``."""
    fruitless: int = 0
    """How many attempts in a row, up to the last, ended soon and saved nothing new."""
    preempted_at: int = -1
    """The last step that was saved because a host is taken away."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt failed."""

    error: RunnerError
    seconds: float
    """How long it lasted."""
    has_saved: bool
    """Whether it saved a later step than all attempts before it."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Another attempt is made."""

    why: str
    """For people: what happened, and when the ranks start again."""
    history: History
    """With the attempt that has ended."""
    wait_seconds: float = 0.0


def decide(history: History, ending: Ending, config: RunConfig) -> Decision | None:
    """Whether all ranks are started once more. None: the run is over."""
    error, sentence = ending.error, first_line(ending.error)
    history = replace(history, attempts=history.attempts + 1)
    step = _preempted_step(error)
    if config.max_restarts and step is not None and step > history.preempted_at:
        return Decision(
            why=f"{sentence} The training goes on.",
            history=replace(history, preempted_at=step),
        )
    if history.restarts >= config.max_restarts or not _is_worth_it(error, config):
        return None
    if ending.has_saved:
        fruitless = 0
    else:
        fruitless = 1 if ending.seconds > LASTING_SECONDS else history.fruitless + 1
    seconds = 0.0
    if fruitless:
        doubled = 2.0 ** min(fruitless - 1, 30)
        seconds = min(config.restart_backoff_seconds * doubled, MOST_BACKOFF_SECONDS)
    when = f"in {seconds:g} s" if seconds else "at once"
    restart = history.restarts + 1
    return Decision(
        why=f"{sentence} Restarting all ranks {when}: restart {restart} of {config.max_restarts}.",
        history=replace(history, restarts=restart, fruitless=fruitless),
        wait_seconds=seconds,
    )


def _raise_last(error: RunnerError, attempt: AttemptSpec) -> NoReturn:
    """Raises the error that ends the run, and says if it was not the first attempt's."""
    if attempt.number:
        error.add_note(f"This was attempt {attempt.number}, counted from 0.")
    if attempt.is_restart and isinstance(error, LaunchError):
        # A LaunchError says that nothing has run, and an earlier attempt has.
        raise RunnerError(f"The ranks could not be started again. {error}") from error
    raise error


class _Saves(Reports):
    """Notes the step of the newest checkpoint of all attempts."""

    def __init__(self) -> None:
        self.step = -1

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        self.step = max(self.step, int(report["facts"].get("checkpoint_step", -1)))


def _preempted_step(error: RunnerError) -> int | None:
    """The step that the ranks saved before they ended, since a host is taken away.

    Such an end is no failure: it does not count as a restart, as long as there was progress since
    the one before.
    """
    if not isinstance(error, WorkerFailedError) or not error.is_preemption:
        return None
    step = getattr(error.__cause__, "step", None)
    return step if isinstance(step, int) else None


def _is_worth_it(error: RunnerError, config: RunConfig) -> bool:
    """Whether another attempt may succeed: not if this one was refused, or cancelled."""
    if isinstance(error, _FINAL):
        return False
    if isinstance(error, WorkerFailedError) and not error.is_communication_error:
        # Its host will be taken away, or the error says that it may not recur.
        is_expected = error.is_preemption or error.is_worth_a_restart
        return is_expected or config.restart_user_errors
    return True

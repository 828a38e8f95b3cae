"""The result of a run: rank 0's value, or the error that names the rank that was the cause."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import (
    NotPicklableError,
    ResultTooLargeError,
    RunCancelledError,
    RunnerError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerHungError,
)
from sparkdl_runner.launch.driver.all_waiting import grouped_stacks
from sparkdl_runner.launch.driver.consequences import (
    consequences,
    cut,
    end_of,
    indented,
    returned_before,
)
from sparkdl_runner.launch.driver.returned_values import value_of
from sparkdl_runner.launch.wire import function
from sparkdl_runner.launch.wire.outcome import Outcome, Status

# Limits for the cause in a message. The error's attributes have all of it.
MOST_MESSAGE_CHARACTERS, MOST_TRACEBACK_CHARACTERS = 10_000, 100_000


def result_of(outcomes: Sequence[Outcome], run: str) -> Any:
    """Returns rank 0's value, or a list of all ranks' where that is what was asked for.

    Args:
        outcomes: How the ranks of one attempt ended.
        run: The run's own name, for a value that cannot be unpickled and so is kept in a file.

    Raises:
        RunnerError: They failed, or were stopped.
    """
    cause = root_cause(outcomes)
    if cause is not None:
        raise to_error(cause, outcomes)
    returned = {
        outcome.world.rank: outcome for outcome in outcomes if outcome.status == Status.RETURNED
    }
    if 0 not in returned:
        raise RunnerError(_why_stopped(outcomes))
    for outcome in outcomes:
        for note in outcome.notes:
            tell(f"{note.rstrip('.')}.")
    value = value_of(returned[0], run)
    if not isinstance(value, function.EachRanksValue):
        return value
    if len(returned) < returned[0].world.size:
        raise RunnerError("The ranks were stopped before all had returned their values.")
    return [value.value, *(value_of(returned[rank], run).value for rank in range(1, len(returned)))]


def _why_stopped(outcomes: Sequence[Outcome]) -> str:
    fenced = [
        outcome for outcome in outcomes if outcome.status == Status.STOPPED and outcome.message
    ]
    if not fenced:
        return "The ranks were stopped before rank 0 had returned its value."
    world = fenced[0].world
    return (
        f"The driver was silent: rank {world.rank} on host {world.place} {fenced[0].message}, "
        "twice heartbeat_timeout_seconds, and so the ranks ended themselves. The driver's process "
        "was suspended (Ctrl-Z, a laptop's lid, a debugger), a thread of it held Python's lock, or "
        "the network was cut. Raise RunConfig.heartbeat_timeout_seconds to bear longer silences. "
        "With max_restarts the training goes on by itself, from its last checkpoint."
    )


def explains_the_end(failures: Sequence[Outcome]) -> bool:
    """Whether the failures hold a cause, and not only that ranks lost one another."""
    return not all(map(_has_lost_its_peers, failures))


def root_cause(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Picks the failure that explains the others, whatever the clocks of their hosts say.

    Args:
        outcomes: In the order in which the driver heard of them.
    """
    failures = [outcome for outcome in outcomes if outcome.is_failure]
    cause = min(failures, key=_is_likely_a_consequence, default=None)
    if cause is None or cause.status != Status.FAILED or cause.is_communication_error:
        return cause
    # Where most raise one error at one place, who raises it elsewhere has called something else.
    alike = [one for one in failures if one.message == cause.message]
    (usual, count), *_ = Counter(one.traceback for one in alike).most_common()
    odd = (one for one in alike if one.traceback != usual)
    return next(odd, cause) if 2 * count > len(alike) else cause


def _is_likely_a_consequence(failure: Outcome) -> tuple[bool, bool, bool]:
    # A native library that loses its peers may give up by SIGABRT.
    has_aborted = failure.exit_code == -signal.SIGABRT
    return _has_lost_its_peers(failure), has_aborted, failure.is_communication_error


def _has_lost_its_peers(failure: Outcome) -> bool:
    is_hang = failure.status in (Status.HUNG, Status.WAITING)
    return failure.is_communication_error and not is_hang


def with_failures(outcomes: Sequence[Outcome], failures: Sequence[Outcome]) -> list[Outcome]:
    """How each rank ended: as the driver saw it, else as its agent reported it.

    Args:
        outcomes: As the agents saw them; a rank that was found to hang was then stopped.
        failures: What was reported, or seen, while the ranks ran, in the order of its coming.

    Returns:
        Those of failures first, in their order.
    """
    judged = {
        outcome.world.rank: outcome for outcome in failures if outcome.status.is_drivers_finding
    }
    known = [
        replace(
            judged.pop(outcome.world.rank),
            output_tail=outcome.output_tail,
            log_path=outcome.log_path,
        )
        if outcome.world.rank in judged and outcome.status == Status.STOPPED
        else outcome
        for outcome in outcomes
    ]
    known += judged.values()
    heard = {
        outcome.world.rank: -number for number, outcome in enumerate(reversed(failures), start=1)
    }
    return sorted(known, key=lambda outcome: heard.get(outcome.world.rank, 0))


def to_error(cause: Outcome, outcomes: Sequence[Outcome]) -> RunnerError:
    """Makes the exception that the driver raises.

    Args:
        cause: What ``root_cause`` picked.
        outcomes: All ends that are known; the other failures are listed as consequences.
    """
    world = cause.world
    place = f"Rank {world.rank} of {world.size} on host {world.place}"
    for refusal in (NotPicklableError, ResultTooLargeError):
        if refusal.__name__ == cause.refused_result:
            return refusal(cause.message)
    if cause.status == Status.CANCELLED:
        return RunCancelledError(cause.message)
    if cause.status == Status.FAILED:
        text = cut(cause.message, MOST_MESSAGE_CHARACTERS)
        summary = f"{place} raised {cause.exception}: {text}".rstrip(": ")
    elif cause.status == Status.WAITING:
        summary = cause.message
    else:
        summary = f"{place} {end_of(cause)}"
    parts = [summary]
    if cause.is_communication_error and (note := returned_before(outcomes)):
        parts.append(note)
    if cause.status == Status.WAITING:
        waiting = [outcome for outcome in outcomes if outcome.status == Status.WAITING]
        outcomes = [outcome for outcome in outcomes if outcome.status != Status.WAITING]
        parts += grouped_stacks(sorted(waiting, key=lambda outcome: outcome.world.rank))
    elif cause.traceback:
        what = "Stacks" if cause.status == Status.HUNG else "Traceback"
        text = indented(cut(cause.traceback, MOST_TRACEBACK_CHARACTERS))
        parts.append(f"{what} of rank {world.rank}:\n{text}")
    if cause.output_tail:
        tail = "\n".join(cause.output_tail)
        parts.append(f"Last output of rank {world.rank}:\n{indented(tail)}")
    if cause.log_path:
        parts.append(f"All that it printed is in {cause.log_path} on host {world.place}.")
    parts += consequences([other for other in outcomes if other is not cause])
    message = "\n\n".join(parts)
    place_of_error: dict[str, Any] = {
        "rank": world.rank,
        "host": world.host,
        "attempt": world.attempt,
        "output_tail": cause.output_tail,
        "log_path": cause.log_path,
    }
    if cause.status in (Status.DIED, Status.LOST):
        return WorkerDiedError(message, **place_of_error)
    if cause.status in (Status.HUNG, Status.WAITING):
        return WorkerHungError(message, **place_of_error, stacks=cause.traceback)
    error = WorkerFailedError(
        message,
        **place_of_error,
        remote_traceback=cause.traceback,
        is_communication_error=cause.is_communication_error,
        is_preemption=cause.is_preemption,
        is_worth_a_restart=cause.is_worth_a_restart,
    )
    error.__cause__ = function.unpack_exception(cause.payload) if cause.payload else None
    return error

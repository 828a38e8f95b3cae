"""How each rank ended, and which of the ends is the cause of all the others."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkdl_runner.errors import (
    NotPicklableError,
    ResultTooLargeError,
    RunnerError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerHungError,
)
from sparkdl_runner.wire import function
from sparkdl_runner.world import World

# A lost connection is often noticed before the process whose loss it was has been reported.
SETTLE_SECONDS = 1.0

RETURNED = "returned"
FAILED = "failed"
DIED = "died"
STOPPED = "stopped"
HUNG = "hung"
LOST = "lost"
DIFFERS = "differs"
_SEEN_BY_DRIVER = (HUNG, LOST, DIFFERS)

RESULT_REFUSALS = (NotPicklableError, ResultTooLargeError)

# Characters of a report; one takes up to 12 bytes of JSON.
MAX_NAME = 200
MAX_MESSAGE = 16 * 1024
MAX_TRACEBACK = 32 * 1024
MAX_TAIL_LINE = 500


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of one rank, as its agent saw it."""

    world: World
    status: str
    """``returned``; ``failed`` (the function raised); ``died`` (the process ended without a word);
    ``stopped`` (ended by us, since another rank had failed or the run was cancelled); ``hung`` (no
    progress for too long), ``lost`` (its agent is not heard any more) and ``differs`` (it reads its
    data in another order than other ranks), as the driver saw it."""
    ended_at: float
    """Seconds since the epoch, by the host's clock."""
    exit_code: int | None = None
    """As ``subprocess`` has it: negative for a signal."""
    exception: str = ""
    message: str = ""
    traceback: str = ""
    is_communication_error: bool = False
    is_preemption: bool = False
    """The function raised since its host is to be taken away, after a checkpoint was saved."""
    is_worth_a_restart: bool = False
    """What the function raised may not happen again, and says so."""
    refused_result: str = ""
    """The function returned, and what it returned cannot travel: the name of the error to raise."""
    output_tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What the driver should say about this rank besides: dropped output, an unclean exit."""
    log_path: str = ""
    """Where on its host all that the rank printed is; empty if it is nowhere."""
    payload: bytes = field(default=b"", repr=False)
    """The pickled value of rank 0, or the pickled exception."""

    def to_report(self) -> dict[str, Any]:
        """The outcome of a failure as plain values, without the pickle and cut to bearable size."""
        return {
            "status": self.status,
            "ended_at": self.ended_at,
            "exit_code": self.exit_code,
            "exception": self.exception[:MAX_NAME],
            "message": self.message[:MAX_MESSAGE],
            "traceback": self.traceback[-MAX_TRACEBACK:],
            "is_communication_error": self.is_communication_error,
            "is_preemption": self.is_preemption,
            "is_worth_a_restart": self.is_worth_a_restart,
            "refused_result": self.refused_result,
            "output_tail": [line[:MAX_TAIL_LINE] for line in self.output_tail],
            "log_path": self.log_path[:MAX_MESSAGE],
        }

    @classmethod
    def from_report(cls, world: World, report: dict[str, Any]) -> Outcome:
        """Rebuilds what ``to_report`` made."""
        return cls(world=world, **{**report, "output_tail": tuple(report["output_tail"])})

    @property
    def is_failure(self) -> bool:
        """Whether the rank ended badly by itself."""
        return self.status in (FAILED, DIED, *_SEEN_BY_DRIVER)


class UnheardFailureError(Exception):
    """Raised by an agent whose rank has failed while the driver does not hear it.

    A failed task makes Spark end the other ranks, and its text reaches the driver: one line of
    JSON, from which the driver rebuilds the outcome.
    """

    @classmethod
    def of(cls, outcome: Outcome) -> UnheardFailureError:
        """Packs an outcome."""
        return cls(json.dumps({"world": outcome.world.to_json(), "report": outcome.to_report()}))

    @staticmethod
    def outcome(text: str) -> Outcome:
        """Unpacks the text of such an error."""
        fields = json.loads(text)
        return Outcome.from_report(World.from_json(fields["world"]), fields["report"])


def explains_the_end(failures: Sequence[Outcome]) -> bool:
    """Whether the failures hold a cause, and not only that ranks lost one another."""
    return any(one.status == HUNG or not one.is_communication_error for one in failures)


def root_cause(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Picks the failure that explains the others: the earliest that is no communication error."""
    failures = sorted(
        (outcome for outcome in outcomes if outcome.is_failure),
        key=lambda outcome: (outcome.is_communication_error, outcome.ended_at),
    )
    return failures[0] if failures else None


def with_failures(outcomes: Sequence[Outcome], failures: Sequence[Outcome]) -> list[Outcome]:
    """The ends that ranks told of, but where the driver itself saw one fail, what it saw.

    Args:
        outcomes: As the agents saw them; a rank that was found to hang was then stopped.
        failures: What was reported, or seen, while the ranks ran.
    """
    judged = {one.world.rank: one for one in failures if one.status in _SEEN_BY_DRIVER}
    known = [
        replace(
            judged.pop(outcome.world.rank),
            output_tail=outcome.output_tail,
            log_path=outcome.log_path,
        )
        if outcome.world.rank in judged and outcome.status == STOPPED
        else outcome
        for outcome in outcomes
    ]
    return known + list(judged.values())


def to_error(cause: Outcome, outcomes: Sequence[Outcome]) -> RunnerError:
    """Makes the exception that the driver raises.

    Args:
        cause: What ``root_cause`` picked.
        outcomes: All ends that are known; the other failures are listed as consequences.
    """
    world = cause.world
    place = f"Rank {world.rank} of {world.size} on host {world.host}"
    for refusal in RESULT_REFUSALS:
        if refusal.__name__ == cause.refused_result:
            return refusal(cause.message)
    if cause.status == FAILED:
        summary = f"{place} raised {cause.exception}: {cause.message}".rstrip(": ")
    else:
        summary = f"{place} {_end_of(cause)}"
    parts = [summary]
    if cause.traceback:
        what = "Stacks" if cause.status == HUNG else "Traceback"
        parts.append(f"{what} of rank {world.rank}:\n{_indent(cause.traceback)}")
    if cause.output_tail:
        tail = "\n".join(cause.output_tail)
        parts.append(f"Last output of rank {world.rank}:\n{_indent(tail)}")
    if cause.log_path:
        parts.append(f"All that it printed is in {cause.log_path} on host {world.host}.")
    parts += consequences([other for other in outcomes if other is not cause])
    message = "\n\n".join(parts)
    place_of_error: dict[str, Any] = {
        "rank": world.rank,
        "host": world.host,
        "attempt": world.attempt,
        "output_tail": cause.output_tail,
        "log_path": cause.log_path,
    }
    if cause.status in (DIED, LOST):
        return WorkerDiedError(message, **place_of_error)
    if cause.status == HUNG:
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


def consequences(outcomes: Sequence[Outcome]) -> list[str]:
    """A paragraph on the ranks that failed because something else had; none if none did."""
    failures = [_consequence(outcome) for outcome in outcomes if outcome.is_failure]
    return ["As a consequence:\n" + _indent("\n".join(failures))] if failures else []


def describe_exit(exit_code: int | None) -> str:
    """Says in words how a process ended that left no result."""
    if exit_code is None:
        return "ended without a result."
    if exit_code >= 0:
        return (
            f"exited with code {exit_code} before the function returned (os._exit, or a native "
            "library that gave up)."
        )
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hints: dict[int, str] = {
        signal.SIGKILL: " That is what the kernel does when memory runs out, or kill -9.",
        signal.SIGSEGV: " A native library accessed memory that is not its own.",
        signal.SIGABRT: " A native library gave up; its last words are in the output.",
    }
    return f"was ended by {name}.{hints.get(-exit_code, '')}"


def _end_of(outcome: Outcome) -> str:
    if outcome.status in _SEEN_BY_DRIVER:
        return outcome.message
    if outcome.exit_code == -signal.SIGKILL and outcome.message:
        return f"was ended by SIGKILL. {outcome.message}"
    return describe_exit(outcome.exit_code)


def _consequence(outcome: Outcome) -> str:
    world = outcome.world
    what = (
        outcome.message
        if outcome.status in _SEEN_BY_DRIVER
        else "lost its peers (" + outcome.exception + ")"
        if outcome.is_communication_error
        else f"raised {outcome.exception}: {outcome.message}"
        if outcome.status == FAILED
        else _end_of(outcome)
    )
    return f"rank {world.rank} on host {world.host} {what}"


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.rstrip().splitlines())

"""How a rank ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import StrEnum

from sparkdl_runner.rank.world import World


class Status(StrEnum):
    """The ways in which a rank ends."""

    RETURNED = "returned"
    FAILED = "failed"
    """The function raised."""
    DIED = "died"
    """The process ended without a word."""
    STOPPED = "stopped"
    """We ended it, since another rank had failed or the run was cancelled."""
    HUNG = "hung"
    """It made no progress for too long."""
    WAITING = "waiting"
    """It waits for its peers as all others do, and no rank is late."""
    LOST = "lost"
    """Its agent is not heard any more."""
    DIFFERS = "differs"
    """It reads its data in another order than other ranks."""
    CANCELLED = "cancelled"
    """The receiver of the ranks' reports had all ranks ended."""

    @property
    def is_failure(self) -> bool:
        """Whether the rank ended badly by itself."""
        return self not in (Status.RETURNED, Status.STOPPED)

    @property
    def is_drivers_finding(self) -> bool:
        """Whether the driver found it; the other ways are found by the rank's agent."""
        return self not in (Status.RETURNED, Status.STOPPED, Status.FAILED, Status.DIED)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of one rank."""

    world: World
    status: Status
    ended_at: float
    """Seconds since the epoch, by the host's clock."""
    exit_code: int | None = None
    """As ``subprocess`` has it: negative for a signal."""
    exception: str = ""
    """The name of the exception's class."""
    message: str = ""
    traceback: str = ""
    is_communication_error: bool = False
    is_preemption: bool = False
    """The function raised after it had saved a checkpoint, since a host will be taken away."""
    preempted_ranks: tuple[int, ...] = ()
    """The ranks whose hosts will be, as far as that is known."""
    is_growth: bool = False
    """The function raised after it had saved a checkpoint, since there can be more ranks now."""
    is_worth_a_restart: bool = False
    """The exception itself says that it may not happen again."""
    has_joined: bool = True
    """Whether the function that returned had ever joined the other ranks, as far as is known."""
    refused_result: str = ""
    """The function returned a value that cannot travel: the name of the error to raise."""
    output_tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Further notes about this rank for the driver: dropped output, an unclean exit."""
    log_path: str = ""
    """The file on the rank's host with all that it printed; empty if there is none."""
    payload: bytes = field(default=b"", repr=False)
    """The pickled value of rank 0, or the pickled exception."""
    of_each: bool = False
    """Whether the value is one of each rank's."""
    checkpoint: str = ""
    """The URL of the newest checkpoint that a rank saved before it returned; else empty."""
    value_sha256: str = ""
    """Of a pickled value that went to the driver by the channel; else empty."""
    value_file: str = ""
    """Where the driver has put that value; else empty."""

    @property
    def is_failure(self) -> bool:
        """Whether the rank ended badly by itself."""
        return self.status.is_failure

    def allows_restart(self, *, user_errors: bool) -> bool:
        """Whether the ranks may do better if they are started again.

        Args:
            user_errors: Whether that may be so after any error of the function.
        """
        if self.status != Status.FAILED or self.is_communication_error:
            return self.status != Status.CANCELLED
        return user_errors or self.is_preemption or self.is_growth or self.is_worth_a_restart


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

"""The end before a host is taken away: all ranks leave together, with their checkpoint."""

from __future__ import annotations

from typing import NoReturn

from sparkdl_runner.checkpoint.errors import CheckpointError, Preempted
from sparkdl_runner.checkpoint.save.attempt import Attempt
from sparkdl_runner.checkpoint.save.saver import Saver
from sparkdl_runner.checkpoint.stopping import Stop


def end_preempted(saver: Saver, attempt: Attempt, stop: Stop, step: int) -> NoReturn:
    """Waits for the checkpoint of all ranks, and raises what ends them.

    Args:
        saver: Of this rank; it writes the step.
        attempt: The training.
        stop: The rank whose host is needed elsewhere, and how that is known.
        step: The step that is saved.

    Raises:
        Preempted: The checkpoint is committed.
        CheckpointError: It could not be saved, by this rank or another.
    """
    failure: CheckpointError | None = None
    try:
        saver.wait()
    except CheckpointError as error:
        failure = error
    if attempt.peers.any_rank(failure is not None):
        raise failure or CheckpointError(
            f"Another rank could not save step {step} before a host is taken away; "
            "its own error says why."
        )
    raise Preempted(step, stop.rank, attempt.hosts[stop.rank], stop.reason)

"""The end that SIGTERM asked for: all ranks leave together, once their checkpoint is committed."""

from __future__ import annotations

from typing import NoReturn

from sparkdl_runner.checkpoint.errors import CheckpointError, Preempted
from sparkdl_runner.checkpoint.save.attempt import Attempt
from sparkdl_runner.checkpoint.save.saver import Saver


def end_preempted(saver: Saver, attempt: Attempt, rank: int, step: int) -> NoReturn:
    """Waits for the checkpoint of all ranks, and raises what ends them.

    Args:
        saver: Of this rank; it writes the step.
        attempt: The training.
        rank: The rank that was asked to stop.
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
            f"Another rank could not save step {step} before the end that SIGTERM asked for; "
            "its own error says why."
        )
    raise Preempted(step, rank, attempt.hosts[rank])

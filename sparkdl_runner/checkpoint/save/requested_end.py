"""Ends that were asked for: all ranks leave together, once their checkpoint is committed."""

from __future__ import annotations

from typing import NoReturn

from sparkdl_runner.checkpoint import stopping
from sparkdl_runner.checkpoint.errors import CheckpointError, Growing, Preempted
from sparkdl_runner.checkpoint.save.attempt import WriterFence
from sparkdl_runner.checkpoint.save.saver import Saver
from sparkdl_runner.checkpoint.stopping import Stop
from sparkdl_runner.rank import stop_request


def end_preempted(saver: Saver, attempt: WriterFence, stop: Stop, step: int) -> NoReturn:
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
    raise Preempted(step, stop.rank, attempt.hosts[stop.rank], stop.reason, stop.leaving)


def end_if_growing(saver: Saver, attempt: WriterFence, step: int, resumed_at: int | None) -> None:
    """Raises what ends all ranks once their checkpoint is committed, if there can be more of them.

    Args:
        saver: Of this rank; it writes the step.
        attempt: The training.
        step: The step that is saved.
        resumed_at: The step from which the training goes on; None if it never asked for one.

    Raises:
        Growing: The checkpoint is committed.
        CheckpointError: It could not be saved, and that is no mere warning.
    """
    # A training that restores nothing would begin anew, and one without progress gains nothing.
    if resumed_at is None or step <= resumed_at:
        return
    # This may be the last save of a training that ends early, by should_stop.
    if stopping.agreement.stop is not None:
        return
    reason = stop_request.growth()
    if not attempt.peers.any_rank(bool(reason)):
        return
    saver.tolerate(saver.wait)
    if not attempt.peers.any_rank(not saver.has(step)):
        raise Growing(step, reason or "There can be more ranks")

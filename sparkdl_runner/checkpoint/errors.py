"""Errors of checkpoints, and the exceptions by which a training ends early."""

from __future__ import annotations

from sparkdl_runner.errors import RunnerError


class CheckpointError(RunnerError):
    """A checkpoint could not be saved, or its directory cannot be used."""


class CheckpointStorageError(CheckpointError):
    """The storage failed to read or write a checkpoint, also when it was asked again for a while.

    Attributes:
        is_worth_a_restart: Tells the process that started the ranks that starting them again is
            right: the storage may answer then.
    """

    is_worth_a_restart = True


class CheckpointMismatchError(CheckpointError, ValueError):
    """The checkpoint is whole, and of another model, optimizer or loader than was given."""


class DamageError(Exception):
    """A file of a checkpoint is not what was written. The message says which file, and how."""


class UnfinishedError(DamageError):
    """A manifest is not whole: it is damaged, or a training is writing it."""


class UnreadableError(DamageError):
    """A file may be as it was written: the storage that holds it cannot be read."""


class Growing(RunnerError):  # noqa: N818 - not an error of anyone: there can be more ranks
    """All ranks saved a checkpoint, to be started again as more of them.

    Attributes:
        step: The step that was saved.
        is_growth: Tells the process that started the ranks to start them again.
    """

    is_growth = True

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"{reason}. The training goes on from step {step}.")
        self.step = step
        self.reason = reason

    def __reduce__(self) -> tuple[type[Growing], tuple[int, str]]:
        return type(self), (self.step, self.reason)


class Preempted(RunnerError):  # noqa: N818 - not an error of anyone: the host was needed elsewhere
    """A rank's host will be taken away; all ranks saved a checkpoint and ended.

    Attributes:
        step: The step that was saved.
        rank: The rank that knew of it, the lowest one if there were several.
        host: Its host.
        reason: How it knew: SIGTERM, or a notice of the cloud or of Spark.
        ranks: All ranks whose hosts will be taken away.
        is_preemption: Tells the process that started the ranks to start them again.
    """

    is_preemption = True

    def __init__(
        self,
        step: int,
        rank: int,
        host: str,
        reason: str = "SIGTERM",
        ranks: tuple[int, ...] = (),
    ) -> None:
        super().__init__(
            f"Rank {rank} on host {host} was asked to stop ({reason}); all ranks saved step {step} "
            "and ended."
        )
        self.step = step
        self.rank = rank
        self.host = host
        self.reason = reason
        self.ranks = ranks or (rank,)

    def __reduce__(self) -> tuple[type[Preempted], tuple[int, int, str, str, tuple[int, ...]]]:
        return type(self), (self.step, self.rank, self.host, self.reason, self.ranks)

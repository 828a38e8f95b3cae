"""The errors a person meets, each one a sentence that says what was found and what to do."""

from __future__ import annotations


class RunnerError(RuntimeError):
    """Base of every error that this package raises on purpose, besides bad arguments.

    Bad arguments are ``TypeError`` or ``ValueError``, as everywhere in Python.
    """


class LaunchError(RunnerError):
    """The ranks could not be started: no session, no slots, a missing backend."""


class NotPicklableError(RunnerError, TypeError):
    """The function, an argument or the result cannot travel between processes."""


class WorkerError(RunnerError):
    """A rank ended badly.

    Attributes:
        rank: The rank that ended first for a reason of its own.
        host: The host that it ran on.
        attempt: Which submission of the gang it belonged to, from 0.
        output_tail: The last lines that the rank printed, oldest first.
    """

    def __init__(
        self, message: str, *, rank: int, host: str, attempt: int, output_tail: tuple[str, ...]
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.attempt = attempt
        self.output_tail = output_tail


class WorkerFailedError(WorkerError):
    """The user's function raised in a rank.

    Attributes:
        remote_traceback: The traceback as it was printed in the rank. The original exception is
            the ``__cause__`` where it could be pickled.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        host: str,
        attempt: int,
        output_tail: tuple[str, ...],
        remote_traceback: str,
    ) -> None:
        super().__init__(message, rank=rank, host=host, attempt=attempt, output_tail=output_tail)
        self.remote_traceback = remote_traceback


class WorkerDiedError(WorkerError):
    """A rank's process ended without a result: a signal, ``os._exit``, the OOM killer."""

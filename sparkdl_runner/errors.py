"""The errors a person meets, each one a sentence that says what was found and what to do."""

from __future__ import annotations

import sysconfig
import traceback
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparkdl_runner.base.shown_text import lines

if TYPE_CHECKING:
    from pathlib import Path


class RunnerError(RuntimeError):
    """Base of every error that this package raises on purpose, besides bad arguments.

    Bad arguments are ``TypeError`` or ``ValueError``, as everywhere in Python.
    """

    def __str__(self) -> str:
        # Text of ranks and of servers is a part of many a message.
        return lines(super().__str__())

    @property
    def full_traceback(self) -> str:
        """The traceback with the frames and causes that a notebook does not show."""
        return "".join(traceback.format_exception(self))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of its traceback: the user's frames, and the message."""
        frames = traceback.StackSummary.extract(_of_the_user(self.__traceback__)).format()
        head = ["Traceback (most recent call last):\n"] * bool(frames)
        return [
            *"".join([*head, *frames, *traceback.format_exception_only(self)]).splitlines(),
            "",
            "(The frames of sparkdl_runner are in the error's full_traceback.)",
        ]


class ConfigError(RunnerError, ValueError):
    """A job's configuration cannot work; the sentence says what to change. Nothing was started."""


class LaunchError(RunnerError):
    """The ranks could not be started: no session, no slots, a missing backend."""


class RunCancelledError(RunnerError):
    """The run was ended from outside: its job cancelled, its session stopped, its trial pruned."""


class ResultTooLargeError(RunnerError):
    """The value that rank 0 returned is larger than Spark, or its settings, allow."""


class NotPicklableError(RunnerError, TypeError):
    """The function, an argument or the result cannot travel between processes.

    Attributes:
        kept: The driver's file with a returned value that it could not unpickle; else None.
    """

    kept: Path | None = None


class RanksApartError(RunnerError):
    """The ranks never joined one another, and ``require_collectives`` is True."""


class ScriptExitedError(RunnerError):
    """A script ended by itself with an exit code other than 0, in a rank.

    Attributes:
        exit_code: As the shell would see it.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return lines(str(self.args[0]))


class WorkerError(RunnerError):
    """A rank ended badly.

    Attributes:
        rank: The rank that ended first for a reason of its own.
        host: The host that it ran on.
        attempt: Which submission of the gang it belonged to, from 0.
        output_tail: The last lines that the rank printed, oldest first.
        log_path: The file on ``host`` that holds all that it printed; empty if there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        host: str,
        attempt: int,
        output_tail: tuple[str, ...],
        log_path: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.attempt = attempt
        self.output_tail = output_tail
        self.log_path = log_path


class WorkerFailedError(WorkerError):
    """The user's function raised in a rank, or ranks were to read their data in different orders.

    Attributes:
        remote_traceback: The traceback as it was printed in the rank. The original exception is
            the ``__cause__`` where it could be pickled.
        is_communication_error: Whether all that is known is that ranks lost one another.
        is_preemption: Whether the ranks were asked to end by their host, saved a checkpoint, and
            ended.
        is_worth_a_restart: Whether the exception has an attribute of this name that is true, as
            a ``CheckpointStorageError`` has.
    """

    def __init__(
        self,
        message: str,
        *,
        remote_traceback: str,
        is_communication_error: bool = False,
        is_preemption: bool = False,
        is_worth_a_restart: bool = False,
        **place: Any,
    ) -> None:
        super().__init__(message, **place)
        self.remote_traceback = remote_traceback
        self.is_communication_error = is_communication_error
        self.is_preemption = is_preemption
        self.is_worth_a_restart = is_worth_a_restart


class WorkerHungError(WorkerError):
    """A rank made no progress for longer than the run's settings allow.

    Attributes:
        stacks: The Python stacks of its threads.
    """

    def __init__(self, message: str, *, stacks: str, **place: Any) -> None:
        super().__init__(message, **place)
        self.stacks = stacks


class WorkerDiedError(WorkerError):
    """A rank ended without a result: a signal, ``os._exit``, the OOM killer, a lost host."""


def _of_the_user(trace: types.TracebackType | None) -> Iterator[tuple[types.FrameType, int]]:
    """The frames that led into this package, and those of the user's code that it called."""
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    inside = False
    for frame, line in traceback.walk_tb(trace):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        inside = inside or package == __package__
        is_internal = inside and frame.f_code.co_filename.startswith(installed)
        if package not in (__package__, "IPython") and not is_internal:
            yield frame, line

"""Whether, and when, all ranks are started once more."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from sparkdl_runner.config import RunConfig
from sparkdl_runner.errors import (
    LaunchError,
    NotPicklableError,
    ResultTooLargeError,
    RunCancelledError,
    RunnerError,
    WorkerFailedError,
)

MOST_BACKOFF_SECONDS = 60.0
_FINAL = (LaunchError, NotPicklableError, ResultTooLargeError, RunCancelledError)


class Restarts:
    """Counts the attempts of one run.

    Args:
        config: Says how many there may be, and after what.
        first_attempt: The number of the first; not 0 where an earlier driver made some.
        sleep: Waits for so many seconds.

    Attributes:
        attempt: Which submission of the gang is the next, from 0.
    """

    def __init__(
        self,
        config: RunConfig,
        sleep: Callable[[float], None] = time.sleep,
        first_attempt: int = 0,
    ) -> None:
        self._config = config
        self._sleep = sleep
        self._first_attempt = first_attempt
        self.attempt = first_attempt

    @property
    def count(self) -> int:
        """How often ranks were started again."""
        return self.attempt - self._first_attempt

    def wait_or_raise(self, error: RunnerError) -> None:
        """Waits for the next attempt, or raises the error that ended the last one."""
        if self.count >= self._config.max_restarts or not self._is_worth_it(error):
            if self.attempt and hasattr(error, "add_note"):
                error.add_note(f"This was attempt {self.attempt}, counted from 0.")
            if self.count and isinstance(error, LaunchError):
                # To who called, ranks that could not be started are ranks that never ran.
                raise RunnerError(f"The ranks could not be started again. {error}") from error
            raise error
        seconds = min(self._config.restart_backoff_seconds * 2**self.count, MOST_BACKOFF_SECONDS)
        self.attempt += 1
        summary = str(error).partition("\n")[0]
        print(
            f"sparkdl_runner: {summary} Restarting all ranks in {seconds:g} s: restart "
            f"{self.count} of {self._config.max_restarts}.",
            file=sys.stderr,
        )
        self._sleep(seconds)

    def _is_worth_it(self, error: RunnerError) -> bool:
        """Whether another attempt may fare better: not where it was refused, or called off."""
        if isinstance(error, _FINAL):
            return False
        if isinstance(error, WorkerFailedError) and not error.is_communication_error:
            # A rank that was asked to end by its host, and saved a checkpoint, did nothing wrong.
            is_expected = error.is_preemption or error.is_worth_a_restart
            return is_expected or self._config.restart_user_errors
        return True

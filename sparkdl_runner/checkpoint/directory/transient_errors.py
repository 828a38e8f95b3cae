"""Which errors of a checkpoint's storage may pass by themselves; what failed so is tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sparkdl_runner.base import retrying
from sparkdl_runner.base.storage_errors import StorageFailure, failure_of
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import DamageError, UnreadableError
from sparkdl_runner.errors import RunnerError

_Answer = TypeVar("_Answer")


def may_pass(storage: Storage, error: Exception) -> bool:
    """Whether the storage may do later what it refused with this error."""
    if isinstance(error, DamageError):
        return isinstance(error, UnreadableError)
    if isinstance(error, (RunnerError, FileExistsError, PermissionError)):
        return False
    kind = failure_of(error)
    if kind is StorageFailure.UNKNOWN:  # Services raise errors of many kinds.
        return not storage.is_local
    return kind.is_transient or kind is StorageFailure.NO_SPACE  # Someone may make room.


def patiently(
    storage: Storage,
    action: Callable[[], _Answer],
    hurry: threading.Event | None = None,
    retry_seconds: float | None = None,
) -> _Answer:
    """Returns what ``action`` returns, and calls it again if it raises what may pass.

    Args:
        storage: What the action uses.
        action: May be called several times.
        hurry: Set when there is no time for pauses any more.
        retry_seconds: How long it is called again, with the time that calls themselves take, which
            may have retries of the storage's client in them; by default the storage's own.
    """
    hurry = hurry or threading.Event()
    seconds = storage.retry_seconds if retry_seconds is None else retry_seconds

    def wait(pause: float) -> bool:
        if hurry.is_set():
            return True
        hurry.wait(pause)
        return False  # Told to hurry in the pause: once more, without a further one.

    return retrying.patiently(
        action,
        wait,
        may_pass=partial(may_pass, storage),
        pauses=retrying.pauses_of(seconds),
        most_seconds=seconds,
    )

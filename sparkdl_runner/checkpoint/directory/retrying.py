"""Repeats what a storage failed to do, for a while, if its error may pass by itself."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from sparkdl_runner.base.storage_errors import StorageFailure, failure_of
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import DamageError, UnreadableError
from sparkdl_runner.errors import RunnerError

_Answer = TypeVar("_Answer")
# The first pause is this share of the time for trying again. A save has a call for each file and
# each list, and their pauses add up.
_FIRST_SHARE = 3000
# A generator of its own: the training seeds ``random``, and must find it unchanged.
_drawn = random.Random()


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


def pauses(retry_seconds: float) -> Iterator[float]:
    """Pauses that last so long together, each about twice as long as the one before.

    They are drawn at random, so that ranks which failed together do not come back together.
    """
    pause, left = retry_seconds / _FIRST_SHARE, retry_seconds
    while left > 0:
        drawn = min(pause * _drawn.uniform(0.5, 1.5), retry_seconds / 6, left)
        yield drawn
        pause, left = 2 * pause, left - drawn


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
    end = time.monotonic() + seconds
    for pause in pauses(seconds):
        try:
            return action()
        except Exception as error:
            if hurry.is_set() or time.monotonic() >= end or not may_pass(storage, error):
                raise
        hurry.wait(pause)
    return action()

"""Repeats what a storage failed to do, for a while, if its error may pass by itself."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import TypeVar

from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import DamageError, UnreadableError
from sparkdl_runner.errors import RunnerError

# Before each further try. Together less than the other ranks wait for this one.
PAUSES_SECONDS = (1.0, 3.0, 10.0, 30.0)
# A disk or a network mount fails with these for a reason of its own, whatever the file.
OUTAGES = (
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EREMOTEIO,
)
# Someone may make room.
_FULL = (errno.ENOSPC, errno.EDQUOT)

_Answer = TypeVar("_Answer")


def may_pass(storage: Storage, error: Exception) -> bool:
    """Whether the storage may do later what it refused with this error."""
    if isinstance(error, DamageError):
        return isinstance(error, UnreadableError)
    if isinstance(error, (RunnerError, FileExistsError, PermissionError)):
        return False
    # Services raise errors of many kinds.
    return not storage.is_local or getattr(error, "errno", None) in (*OUTAGES, *_FULL)


def patiently(
    storage: Storage,
    action: Callable[[], _Answer],
    hurry: threading.Event | None = None,
    pauses: tuple[float, ...] | None = None,
) -> _Answer:
    """Returns what ``action`` returns, and calls it again if it raises what may pass.

    Args:
        storage: What the action uses.
        action: May be called several times.
        hurry: Set when there is no time for pauses any more.
        pauses: Seconds before each further call; ``PAUSES_SECONDS`` by default.
    """
    hurry = hurry or threading.Event()
    for pause in PAUSES_SECONDS if pauses is None else pauses:
        try:
            return action()
        except Exception as error:
            if hurry.is_set() or not may_pass(storage, error):
                raise
        hurry.wait(pause)
    return action()

"""Repeats what a storage refuses for a while, and says in a sentence what it refuses for good."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sparkdl_runner.base.storage_errors import StorageFailure, failure_of

PAUSES_SECONDS = (0.2, 1.0, 3.0, 10.0, 30.0)
"""Before each further try; each try has those of the storage's own client in it."""

_AGAIN = "The data are as they were: go on from the last checkpoint."
_ADVICE = {
    StorageFailure.NO_PERMISSION: (
        "Give the ranks the right to read it, by the environment, the host's profile or "
        "storage_options."
    ),
    StorageFailure.EXPIRED: (
        "Give the ranks credentials that renew themselves, such as the host's profile, or that "
        f"last as long as the training. {_AGAIN}"
    ),
    StorageFailure.THROTTLED: (
        "Read fewer and larger row groups, or keep them on the local disks by "
        f"cache_type='local-disk'. {_AGAIN}"
    ),
    StorageFailure.TIMED_OUT: f"Look at the network between here and the storage. {_AGAIN}",
    StorageFailure.UNAVAILABLE: f"Look at the storage, and the network to it. {_AGAIN}",
}

_Answer = TypeVar("_Answer")
# A generator of its own: the training seeds ``random``, and must find it unchanged.
_drawn = random.Random()


def patiently(
    request: Callable[[], _Answer], wait: Callable[[float], object] = time.sleep
) -> _Answer:
    """Returns what ``request`` returns, and calls it again if it raises what may pass.

    Expired credentials may be renewed meanwhile. Pauses are shortened at random by up to half, so
    that the ranks of a large training do not come back together.

    Args:
        request: Reads, and may be called several times.
        wait: Waits so many seconds; returns true if there is no time to go on.
    """
    for pause in PAUSES_SECONDS:
        try:
            return request()
        except OSError as error:
            failure = failure_of(error)
            if not (failure.is_transient or failure is StorageFailure.EXPIRED):
                raise
            if wait(pause * _drawn.uniform(0.5, 1)):
                raise
    return request()


def reason_of(error: Exception, advice_if_gone: str) -> str | None:
    """Why a storage did not give a file, and what to do; None if that is not known.

    Args:
        error: What reading it raised.
        advice_if_gone: What to do if it is not there any more.

    Returns:
        The end of a sentence that begins with the file's name, and a sentence.
    """
    failure = failure_of(error) if isinstance(error, OSError) else StorageFailure.UNKNOWN
    advice = advice_if_gone if failure is StorageFailure.GONE else _ADVICE.get(failure)
    return None if advice is None else f"{failure.value} ({error}). {advice}"

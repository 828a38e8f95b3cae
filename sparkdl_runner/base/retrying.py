"""Repeats what a storage refuses for a while, and says in a sentence what it refuses for good."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
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
# The first of ``pauses_of`` is this share of the whole. A save has a call for each file and each
# list, and their pauses add up.
_FIRST_SHARE = 3000
# A generator of its own: the training seeds ``random``, and must find it unchanged.
_drawn = random.Random()


def may_pass(error: Exception) -> bool:
    """Whether a request that reads may succeed later; expired credentials may be renewed."""
    if not isinstance(error, OSError):
        return False
    failure = failure_of(error)
    return failure.is_transient or failure is StorageFailure.EXPIRED


def pauses_of(seconds: float) -> Iterator[float]:
    """Pauses that last so long together, each about twice as long as the one before.

    They are drawn at random, so that ranks which failed together do not come back together.
    """
    pause, left = seconds / _FIRST_SHARE, seconds
    while left > 0:
        drawn = min(pause * _drawn.uniform(0.5, 1.5), seconds / 6, left)
        yield drawn
        pause, left = 2 * pause, left - drawn


def patiently(
    request: Callable[[], _Answer],
    wait: Callable[[float], object] = time.sleep,
    *,
    may_pass: Callable[[Exception], bool] = may_pass,
    pauses: Iterable[float] | None = None,
    most_seconds: float = math.inf,
) -> _Answer:
    """Returns what ``request`` returns, and calls it again if it raises what may pass.

    Args:
        request: May be called several times.
        wait: Waits so many seconds; returns true if there is no time to go on.
        may_pass: Whether to call again after this error.
        pauses: The seconds before each further call; by default ``PAUSES_SECONDS``, shortened at
            random by up to half, so that the ranks of a large training do not come back together.
        most_seconds: No further call begins after so long. The calls themselves count, which may
            have retries of the storage's client in them.
    """
    if pauses is None:
        pauses = [pause * _drawn.uniform(0.5, 1) for pause in PAUSES_SECONDS]
    end = time.monotonic() + most_seconds
    for pause in pauses:
        try:
            return request()
        except Exception as error:
            if time.monotonic() >= end or not may_pass(error) or wait(pause):
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

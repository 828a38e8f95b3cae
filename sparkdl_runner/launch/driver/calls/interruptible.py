"""Waiting that a signal can end, whichever thread it reaches."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import Any

WAKE_SECONDS = 0.5


def wait_until_done(futures: Collection[Future[Any]]) -> None:
    """Waits for all of them, as ``concurrent.futures.wait`` does, and lets signals end the wait.

    Python's handlers run in the main thread. The system may hand the signal to another thread,
    for instance to one that is starting a third; then nothing wakes the main thread, and a wait
    without a limit would go on as if no one had pressed Ctrl-C. So it looks up from time to time.
    """
    while wait(futures, WAKE_SECONDS).not_done:
        pass

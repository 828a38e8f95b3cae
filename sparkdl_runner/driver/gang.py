"""All or nothing: once one rank has failed, the others are ended, but not before they can tell."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparkdl_runner.wire.outcome import SETTLE_SECONDS


class Gang:
    """Decides when the remaining ranks must be stopped.

    Args:
        stop_all: Ends every rank that still runs; called once at most, from any thread.
    """

    def __init__(self, stop_all: Callable[[], None]) -> None:
        self._stop_all = stop_all
        self._stopping = threading.Lock()
        self._timer: threading.Timer | None = None

    def rank_failed(self, *, is_communication_error: bool) -> None:
        """Takes note of a failure.

        Its cause ends the gang at once. A mere communication error is a consequence: whoever
        caused it gets a moment to be heard first.
        """
        if not is_communication_error:
            self.stop()
        elif self._timer is None:
            self._timer = threading.Timer(SETTLE_SECONDS, self.stop)
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """Stops all ranks, unless that has been done."""
        if self._stopping.acquire(blocking=False):
            self._stop_all()

    def close(self) -> None:
        """Forgets a stop that is still to come. Called when all ranks have ended."""
        if self._timer is not None:
            self._timer.cancel()

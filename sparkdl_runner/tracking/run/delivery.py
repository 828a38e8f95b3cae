"""Brings what is in the spool to MLflow, in order, as soon as MLflow takes it."""

from __future__ import annotations

import threading
import time

from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.run.server import RefusedError, ServerFailedError, TrackingServer
from sparkdl_runner.tracking.run.spool import Spool

MAX_REFUSED = 20
# An entry that fails so often is given up, if one after it is taken.
MAX_TRIES = 20
MAX_SKIPPED = 10
# MLflow takes at most 1000 metrics, 100 parameters and 100 tags at a time.
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
_MOST = {"metric": MAX_METRICS, "param": MAX_PARAMS, "tag": MAX_TAGS}
# Batch entries, so that the server gets a request every so many seconds.
GATHER_SECONDS = 0.5
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 5.0
# How long the thread may take to end; one whose request hangs is left behind.
END_SECONDS = 1.0


class Delivery:
    """A thread between a spool and MLflow.

    Args:
        spool: What is to be delivered; closed by ``close``.
        server: Where to.

    Attributes:
        refused: What MLflow will never take, in words.
        trouble: Why nothing is delivered at the moment; None if all is well.
    """

    def __init__(self, spool: Spool, server: TrackingServer) -> None:
        self._spool = spool
        self._server = server
        self.refused: list[str] = []
        self.trouble: str | None = None
        self.troubled_since: float | None = None
        self._stopped = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-mlflow", daemon=True)
        self._thread.start()

    def flush(self, timeout_seconds: float) -> bool:
        """Waits until the spool is empty. Returns whether it is."""
        self._hurry.set()
        return self._spool.wait_until_empty(timeout_seconds)

    def close(self, timeout_seconds: float) -> int:
        """Delivers what can be delivered in time. Returns how many entries could not."""
        self.flush(timeout_seconds)
        self._stopped.set()
        self._spool.stop_waiting()
        self._thread.join(END_SECONDS)
        left = len(self._spool)
        if not self._thread.is_alive():
            self._spool.close()
        return left

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        failures = 0
        while not self._stopped.is_set():
            waiting = self._spool.peek(MAX_METRICS, timeout_seconds=0.5)
            if not waiting:
                continue
            if len(waiting) < MAX_METRICS:
                self._hurry.wait(GATHER_SECONDS)
                waiting = self._spool.peek(MAX_METRICS, timeout_seconds=0.5)
            # After a failure, try half: one entry may be at fault, or the batch be too slow.
            batch = _fitting(waiting)[: max(1, MAX_METRICS >> min(failures, 10))]
            try:
                self._deliver(batch)
            except Exception as error:  # No error may end this thread.
                answered = isinstance(error, ServerFailedError)
                failures += answered
                if answered and len(batch) == 1 and failures > MAX_TRIES:
                    failures -= self._skip(waiting[: MAX_SKIPPED + 1], error)
                self.trouble = str(error) or type(error).__name__
                self.troubled_since = self.troubled_since or time.monotonic()
                self._stopped.wait(pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
                continue
            self.trouble = self.troubled_since = None
            pause, failures = FIRST_PAUSE_SECONDS, max(0, failures - 1)
            self._spool.drop(len(batch))

    def _deliver(self, batch: list[Entry]) -> None:
        """Delivers a batch; where it is refused, all of it that is not."""
        try:
            self._server.log(batch)
        except RefusedError as error:
            if len(batch) == 1:
                self._refuse(batch[0], error)
                return
            middle = len(batch) // 2
            self._deliver(batch[:middle])
            self._deliver(batch[middle:])

    def _skip(self, waiting: list[Entry], error: Exception) -> int:
        """Gives up the first entries if one after them is taken. Returns how many."""
        for count, entry in enumerate(waiting[1:], start=1):
            if not self._is_taken(entry):
                continue
            for earlier in waiting[:count]:
                # Try again, now that the server is known to take something.
                if not self._is_taken(earlier):
                    self._refuse(earlier, error)
            self._spool.drop(count + 1)
            return count
        return 0

    def _is_taken(self, entry: Entry) -> bool:
        try:
            self._deliver([entry])
        except Exception:
            return False
        return True

    def _refuse(self, entry: Entry, error: Exception) -> None:
        kind, key, *_ = entry
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(f"the {kind} {key!r}: {error}")
        elif len(self.refused) == MAX_REFUSED:
            self.refused.append("and more was refused")


def _fitting(entries: list[Entry]) -> list[Entry]:
    """As many of the first entries as MLflow takes at a time."""
    counts = dict.fromkeys(_MOST, 0)
    for index, (kind, *_) in enumerate(entries):
        counts[kind] += 1
        if counts[kind] > _MOST[kind] or index == MAX_METRICS:
            return entries[:index]
    return entries

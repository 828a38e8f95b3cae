"""Brings what is in the spool to MLflow, in order, as soon as MLflow takes it."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.run.server import RefusedError, ServerFailedError
from sparkdl_runner.tracking.run.spool import Spool

MAX_REFUSED = 20
# An entry at which the server stumbles so often is given up, if others behind it get through.
MAX_TRIES = 20
MAX_PASSED_BY = 10
# MLflow takes at most 1000 metrics, 100 parameters and 100 tags at a time.
MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
_MOST = {"metric": MAX_METRICS, "param": MAX_PARAMS, "tag": MAX_TAGS}
# Small batches would keep a server busier than it need be.
GATHER_SECONDS = 0.5
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 5.0


class Taker(Protocol):
    """Who takes entries: a ``TrackingServer``."""

    def tell(self, entries: list[Entry]) -> None:
        """See ``TrackingServer.tell``."""


class Delivery:
    """A thread between a spool and MLflow.

    Args:
        spool: What is to be delivered; closed by ``close``.
        server: Takes it.

    Attributes:
        refused: What MLflow will never take, in words.
        trouble: Why nothing is delivered at the moment; None if all is well.
    """

    def __init__(self, spool: Spool, server: Taker) -> None:
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
        """Waits until all that was said is delivered. Returns whether it is."""
        self._hurry.set()
        return self._spool.wait_until_empty(timeout_seconds)

    def close(self, timeout_seconds: float) -> int:
        """Delivers what can be delivered in time. Returns how many entries could not."""
        self.flush(timeout_seconds)
        self._stopped.set()
        self._spool.stop_waiting()
        self._thread.join(1.0)
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
            # Perhaps it is one entry that fails, or too much for a slow server to do in time.
            batch = _fitting(waiting)[: max(1, MAX_METRICS >> min(failures, 10))]
            try:
                self._tell(batch)
            except Exception as error:  # Whatever it is, it must not be the last delivery.
                answered = isinstance(error, ServerFailedError)
                failures += answered
                if answered and len(batch) == 1 and failures > MAX_TRIES:
                    failures -= self._pass_by(waiting[: MAX_PASSED_BY + 1], error)
                self.trouble = str(error) or type(error).__name__
                self.troubled_since = self.troubled_since or time.monotonic()
                self._stopped.wait(pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
                continue
            self.trouble = self.troubled_since = None
            pause, failures = FIRST_PAUSE_SECONDS, max(0, failures - 1)
            self._spool.drop(len(batch))

    def _tell(self, batch: list[Entry]) -> None:
        """Delivers a batch; where it is refused, all of it that is not."""
        try:
            self._server.tell(batch)
        except RefusedError as error:
            if len(batch) == 1:
                self._refuse(batch[0], error)
                return
            middle = len(batch) // 2
            self._tell(batch[:middle])
            self._tell(batch[middle:])

    def _pass_by(self, waiting: list[Entry], error: Exception) -> int:
        """Gives entries up if, and only if, one behind them is taken. Returns how many went."""
        for count, entry in enumerate(waiting[1:], start=1):
            if not self._is_taken(entry):
                continue
            for earlier in waiting[:count]:
                # Once more, now that the server is known to take something: it may be mended.
                if not self._is_taken(earlier):
                    self._refuse(earlier, error)
            self._spool.drop(count + 1)
            return count
        return 0

    def _is_taken(self, entry: Entry) -> bool:
        try:
            self._tell([entry])
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

"""A thread that logs how fast the ranks are, and that this driver is alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.run.attempts import Attempts
from sparkdl_runner.tracking.run.delivery import Delivery
from sparkdl_runner.tracking.run.opening.lease import Lease
from sparkdl_runner.tracking.run.rank_reports import RankReports
from sparkdl_runner.tracking.run.undelivered import AFTER_SECONDS, AGAIN_SECONDS

# The pause between two entries of a rate grows with the length of the training.
FIRST_RATE_SECONDS, MOST_RATE_SECONDS = 2.0, 60.0
RATES_BEFORE_SLOWER = 200


class Heartbeat:
    """Logs rates and renews the lease, from ``start`` to ``stop``.

    Args:
        ranks: Gives the rates.
        attempts: Say how the one that runs stands.
        lease: To be renewed.
        delivery: Its trouble is reported, once each time.
        log: Takes entries.
        report_trouble: Called with why MLflow takes nothing.
        keep: Called again and again while that lasts.
    """

    def __init__(
        self,
        ranks: RankReports,
        attempts: Attempts,
        lease: Lease,
        delivery: Delivery,
        *,
        log: Callable[[list[Entry]], None],
        report_trouble: Callable[[str], None],
        keep: Callable[[], None],
    ) -> None:
        self._ranks = ranks
        self._attempts = attempts
        self._lease = lease
        self._delivery = delivery
        self._log = log
        self._report_trouble = report_trouble
        self._keep = keep
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-run", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends, after what it is doing."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        rate_at = began + FIRST_RATE_SECONDS
        renew_at = began + self._lease.own.renew_seconds
        reported: float | None = None
        kept_at = began
        while not self._stopped.wait(1.0):
            now = time.monotonic()
            if now >= rate_at:
                self._log(self._ranks.entries())
                pause = (now - began) / RATES_BEFORE_SLOWER
                rate_at = now + min(max(pause, FIRST_RATE_SECONDS), MOST_RATE_SECONDS)
            if now >= renew_at:
                renew_at += self._lease.own.renew_seconds
                self._log([*self._lease.entries(), *self._attempts.entries()])
            since = self._delivery.troubled_since
            if since not in (None, reported):
                reported = since
                self._report_trouble(self._delivery.trouble or "")
            is_long = since is not None and now - since > AFTER_SECONDS
            if is_long and now - kept_at > AGAIN_SECONDS:
                kept_at = now
                self._keep()

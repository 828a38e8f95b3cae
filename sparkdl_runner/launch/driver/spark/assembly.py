"""The start of ranks that are ordinary tasks: they come one by one, and wait for the last.

Two runs that each hold half of the slots would wait for each other for ever. So a start that takes
too long is given up, its slots are free for a while, and it is tried again.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

from sparkdl_runner.base.shown_text import tell
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark.allocation import Settings
from sparkdl_runner.launch.driver.spark.slots import SAY_SECONDS, counted
from sparkdl_runner.launch.driver.stop_request import StopRequest

# Most starts are over by then.
FIRST_SAY_SECONDS = 3.0
IDLE_TIMEOUT = "spark.dynamicAllocation.executorIdleTimeout"
# A number without a unit is of seconds.
_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# A run that never had its slots ends after so many tries at the earliest.
LEAST_TRIES = 2


class Assembly:
    """One start of a gang of tasks.

    Args:
        config: Says how long its ranks may hold slots, and with how few they may begin.
        num_proc: How many there are to be.
        slots: How many slots there are now, busy or not; None if nobody knows.
        all_started: Whether Spark has started all tasks, so that no slot is missing.
    """

    def __init__(
        self,
        config: RunConfig,
        num_proc: int,
        *,
        slots: Callable[[], int | None] = lambda: None,
        all_started: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._num_proc = num_proc
        self._slots = slots
        self._all_started = all_started
        self._began_at = time.monotonic()
        self._say_at = self._began_at + FIRST_SAY_SECONDS
        self.given_back: int | None = None
        """How many ranks were there when the start was given up; None if it was not."""

    def shortage(self, there: int, seconds: float) -> str | None:
        """See ``Gang.lost_slots``: a sentence once the slots are to be given back."""
        now = time.monotonic()
        limit, whose = self._config.start_timeout_seconds, "start_timeout_seconds"
        if there >= (self._config.min_num_proc or self._num_proc):  # They may begin without others.
            waits = self._config.slot_wait_seconds
            limit, whose = min((limit, whose), (waits, "slot_wait_seconds"))
        waited = seconds if there else now - self._began_at
        have = f"{'has' if there == 1 else 'have'} a slot"
        if waited < limit:
            if now >= self._say_at:
                self._say_at = now + SAY_SECONDS
                if self._all_started():
                    tell(f"all {self._num_proc} ranks have a slot, {there} of them have started.")
                    return None
                tell(
                    f"{there} of {self._num_proc} ranks {have}: waiting up to "
                    f"{limit - waited:.0f} s for the others, before slots are given back."
                )
            return None
        if self._all_started():
            self._began_at = now
            return None  # Those that have not come do not reach the driver, or are slow to start.
        if not there and (self._slots() or 0) >= self._num_proc:
            self._began_at = now  # Other jobs use them. There is nothing to give back.
            ranks = counted(self._num_proc, "rank", "ranks")
            tell(f"waiting for slots of {ranks}, which other jobs of this application use.")
            return None
        self.given_back = there
        return (
            f"{there} of {self._num_proc} ranks {have}, and no more have come "
            f"within {limit:g} s ({whose}): slots are given back."
        )


class Tries:
    """The starts of one attempt of a run whose ranks are tasks.

    Args:
        config: The run's.
        settings: The application's.
        stop: May end the wait for the next try.
    """

    def __init__(self, config: RunConfig, settings: Settings, stop: StopRequest) -> None:
        self._config = config
        self._idle_seconds = _seconds(settings(IDLE_TIMEOUT) or "60s")
        self._stop = stop
        self._tries = 0
        self._began_at = time.monotonic()

    def next_size(self, there: int, needed: int, has_slots: bool) -> int:
        """How many ranks are tried next, after a wait in which executors go to whoever waits.

        Args:
            there: How many have come.
            needed: How many were to come.
            has_slots: Whether there are enough slots, which others use.

        Raises:
            LaunchError: The run has waited for long enough.
            RunCancelledError: It was cancelled.
        """
        least = self._config.min_num_proc
        if least is not None and there >= least:
            return there
        self._tries += 1
        waited = time.monotonic() - self._began_at
        is_over = self._tries >= LEAST_TRIES and waited >= self._config.slot_wait_seconds
        if is_over and not has_slots:
            raise LaunchError(
                f"{needed} ranks need {needed} task slots at once, and in {waited:.0f} s the "
                f"cluster has given {there}, though tasks were waiting for them: it is too small, "
                "or other applications have the rest. Ask for fewer ranks, add workers or cores, "
                "raise the queue's or the namespace's share, or raise RunConfig.slot_wait_seconds "
                "to wait for longer."
            )
        # By chance, so that two runs that give back at once do not meet again.
        pause = random.uniform(0.5, 2.0) * self._idle_seconds
        tell(
            f"{there} of {needed} ranks had slots and gave them back, so that other runs can "
            f"start: the next try is in {pause:.0f} s."
        )
        self._stop.cancelled.wait(pause)
        self._stop.raise_if_cancelled()
        return needed


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    return int(found[1]) * _UNITS.get(found[2], 1) if found else 60.0

"""The attempts of a run, with those of earlier drivers: what each did with its time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from sparkdl_runner.tracking.entries import ATTEMPT_TAG, Entry
from sparkdl_runner.tracking.report.cost import cost_of, in_words
from sparkdl_runner.tracking.report.goodput import TIME_TAG, AttemptTime, goodput_of, times_in
from sparkdl_runner.tracking.report.performance import SYSTEM_PREFIX
from sparkdl_runner.tracking.report.run_summary import GOODPUT, TIME_LEFT, AttemptRow
from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.rank_reports import RankReports


class Attempts:
    """Keeps what is known of each attempt, and makes tags and metrics of it.

    Args:
        ranks: Of the attempt that runs.
        opened: The MLflow run, if there is one.
        first: The number of this driver's first attempt.
    """

    def __init__(self, ranks: RankReports, opened: Opened | None, first: int) -> None:
        self._ranks = ranks
        self._earlier = times_in(opened.run.data.tags, range(first)) if opened else []
        self.own: list[AttemptRow] = []
        """Those of this driver."""
        # The first attempt waits until the run is opened.
        self._called_at = time.time()
        if opened is not None and opened.is_ours and not first:
            self._called_at = opened.run.info.start_time / 1000

    def begin(self, number: int) -> list[Entry]:
        """Says that ranks are about to start."""
        self._ranks.begin_attempt()
        self.own.append(AttemptRow(number=number, began_at=time.time()))
        return [["tag", ATTEMPT_TAG, str(number)]]

    def end(self, error: str, growth: str) -> list[Entry]:
        """Says how the ranks of the last one ended: they returned if both texts are empty."""
        attempt = self.own[-1]
        attempt.ended_at = time.time()
        attempt.error, attempt.growth = error, growth
        attempt.step = self._ranks.step
        attempt.checkpoint_step = self._ranks.checkpoint_step
        attempt.time = self._time(attempt.ended_at, has_failed=bool(error))
        tag = f"{ATTEMPT_TAG}.{attempt.number}.ended_by"
        entries = [["tag", tag, attempt.ended_by], _tag_of(attempt.number, attempt.time)]
        return entries + self._metrics(self._times(), attempt.ended_at)

    def entries(self) -> list[Entry]:
        """How it stands now: goodput, time left, and what would be lost with the driver."""
        if not self._is_running:
            return []
        now, attempt = time.time(), self.own[-1]
        until_now = self._time(now, has_failed=False)
        if until_now.first_step_at is None:
            return []
        # A driver that is lost tells nothing more, and this is then how its attempt failed.
        entries = [_tag_of(attempt.number, replace(until_now, has_failed=True))]
        return entries + self._metrics([*self._times(), until_now], now)

    def _metrics(self, spent: Sequence[AttemptTime], now: float) -> list[Entry]:
        """How it stands at a time of day; nothing before the first step."""
        if all(attempt_time.first_step_at is None for attempt_time in spent):
            return []
        values = {GOODPUT: goodput_of(spent).share, TIME_LEFT: self._ranks.seconds_left()}
        values |= {f"{SYSTEM_PREFIX}{name}": value for name, value in cost_of(spent).items()}
        return [
            ["metric", name, value, int(now * 1000), self._ranks.step, {}]
            for name, value in values.items()
            if value is not None
        ]

    def _time(self, until: float, *, has_failed: bool) -> AttemptTime:
        """The use of the running attempt's time."""
        began_at = self._called_at if len(self.own) == 1 else self.own[-1].began_at
        return self._ranks.time(began_at, until, has_failed=has_failed)

    def _times(self) -> list[AttemptTime]:
        """The times of all attempts that have ended."""
        return [*self._earlier, *(attempt.time for attempt in self.own if attempt.time is not None)]

    @property
    def _is_running(self) -> bool:
        return bool(self.own) and not self.own[-1].ended_at

    def rows(self) -> list[AttemptRow]:
        """This driver's attempts. The one that runs is as it stands now."""
        if not self._is_running:
            return list(self.own)
        step, saved = self._ranks.step, self._ranks.checkpoint_step
        return [*self.own[:-1], replace(self.own[-1], step=step, checkpoint_step=saved)]

    def sentence(self) -> str:
        """Goodput, cost, and the time left if it ended early; empty where no step was timed.

        How long a first step took is unknown.
        """
        spent = self._times()
        if self._is_running:
            spent.append(self._time(time.time(), has_failed=False))
        if not any(attempt_time.steps for attempt_time in spent):
            return ""
        text = goodput_of(spent).sentence()
        if cost := cost_of(spent):
            text += f"; {in_words(cost)}"
        left = None if self._is_running else self._ranks.seconds_left()
        if left:
            text += f"; at its pace, {left:,.0f} s of training are left"
        return text


def _tag_of(number: int, spent: AttemptTime) -> Entry:
    return ["tag", TIME_TAG.format(number), spent.tag()]

"""The state of a run, of which its live page, its report and its description are made."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import plain
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.report.performance import OF_THE_RUN
from sparkdl_runner.tracking.report.run_summary import MAX_FIGURES, RATE, Points, RunSummary
from sparkdl_runner.tracking.run.attempts import Attempts
from sparkdl_runner.tracking.run.opening.opened import Opened
from sparkdl_runner.tracking.run.rank_reports import RankReports

# Points of a curve are no nearer to one another than this part of it.
RESOLUTION = 1 / 200
MAX_LINES, MAX_LINE_CHARACTERS = 30, 300
# Ranks report once a second. Over less, how many samples they report is chance.
RATE_SECONDS = 2.0


class RunState(Reports):
    """Collects what is known while ranks train.

    Args:
        name: The run's.
        redact: Hides secrets.
        opened: The MLflow run, if there is one.
        first_attempt: The number of this driver's first attempt.
    """

    def __init__(
        self, name: str, redact: Redactor, opened: Opened | None = None, first_attempt: int = 0
    ) -> None:
        self._redact = redact
        self.ranks = RankReports()
        self.attempts = Attempts(self.ranks, opened, first_attempt)
        self.seen = RunSummary(name=name, began_at=time.time(), status="RUNNING")
        """What others than ``ranks`` and ``attempts`` know."""
        if opened is not None:
            self.seen.run_id = opened.run.info.run_id
            self.seen.began_at = opened.run.info.start_time / 1000
        self._rated = (0.0, 0)
        """When the last point of the rate was, and how many samples there were."""

    def text_of(self, error: BaseException | None) -> str:
        """An error's message without secrets; empty without an error."""
        return "" if error is None else self._redact(str(error) or type(error).__name__)

    def begin_attempt(self, attempt: int) -> None:
        """See ``Reports.begin_attempt``."""
        self.new_attempt(attempt)

    def new_attempt(self, attempt: int) -> list[Entry]:
        """Begins an attempt, of whose hosts nothing is known yet; see ``Attempts.begin``."""
        self.seen.memory = {}
        return self.attempts.begin(attempt)

    def end_attempt(self, error: BaseException | None, growth: str = "") -> None:
        """See ``Reports.end_attempt``."""
        self.attempts.end(self.text_of(error), growth)

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        self.add(world, report)

    def add(self, world: World, report: dict[str, Any]) -> list[Entry]:
        """Takes a rank's report; see ``RankReports.add``."""
        entries = self.ranks.add(world, report)
        if world.rank != 0:
            return entries
        latest = report["latest"].items()
        self.seen.metrics = {self._redact.name(name): value for name, value in latest}
        now, (rated_at, before) = time.time(), self._rated
        if report["step"] and now - rated_at >= RATE_SECONDS:
            count = sum(counts.samples for counts in self.ranks.totals().values())
            self._rated = now, count
            if rated_at and count > before:
                rate = (count - before) / (now - rated_at)
                _add(self.seen.curves.setdefault(RATE, []), report["step"], rate)
        return entries

    def logged(self, world: World, entries: list[Entry]) -> None:
        """See ``Reports.logged``."""
        curves = self.seen.curves
        for kind, name, value, *rest in entries:
            if kind == "metric" and not name.startswith(OF_THE_RUN) and math.isfinite(value):
                name = self._redact.name(name)
                if name in curves or len(curves) <= MAX_FIGURES:
                    _add(curves.setdefault(name, []), rest[1], value)

    def printed(self, world: World, lines: list[str]) -> bool:
        """See ``Reports.printed``."""
        new = [f"[rank {world.rank}] {plain(line[:MAX_LINE_CHARACTERS])}" for line in lines]
        self.seen.lines = [*self.seen.lines, *new][-MAX_LINES:]
        return False

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """See ``Reports.host_metrics``."""
        self.ranks.add_host(world, values)
        shares = {name: values[name] for name in values if name.endswith("memory_usage_percentage")}
        self.seen.memory = {**self.seen.memory, world.place: shares}

    def slow_ranks(self, text: str) -> None:
        """See ``Reports.slow_ranks``."""
        self.seen.slow_ranks = text

    def preflight(self, report: dict[str, Any]) -> None:
        """See ``Reports.preflight``."""
        self.seen.preflight = report["lines"]

    def end(self, status: str, error: BaseException | None, stopped: str) -> None:
        """Says how the run ended: MLflow's word, the error, and why it was asked to end early."""
        self.seen.status, self.seen.error, self.seen.stopped = status, self.text_of(error), stopped

    def summary(self) -> RunSummary:
        """How it stands now."""
        is_running = self.seen.status == "RUNNING"
        return replace(
            self.seen,
            ended_at=time.time(),
            attempts=self.attempts.rows(),
            totals=self.ranks.totals(),
            hosts=self.ranks.hosts(),
            num_ranks=str(self.ranks.world_size or "?"),
            num_hosts=str(self.ranks.num_hosts or "?"),
            time_use=self.attempts.sentence(),
            total_steps=self.ranks.total_steps if is_running else None,
            seconds_left=self.ranks.seconds_left() if is_running else None,
            curves={name: list(some) for name, some in list(self.seen.curves.items()) if some},
        )


def _add(points: Points, x: float, y: float) -> None:
    """Adds a point. A restarted training repeats steps: what it had there before goes."""
    while points and points[-1][0] >= x:
        points.pop()
    if len(points) > 1 and points[-1][0] - points[-2][0] < RESOLUTION * (x - points[0][0]):
        points.pop()
    points.append((x, y))

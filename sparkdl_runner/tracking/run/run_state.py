"""The state of a run, of which its live page, its report and its description are made."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.report.performance import OF_THE_RUN
from sparkdl_runner.tracking.report.run_summary import MAX_FIGURES, SAMPLES, Points, RunSummary
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
        self.name, self._redact = name, redact
        self._run_id = "" if opened is None else opened.run.info.run_id
        self._began_at = time.time() if opened is None else opened.run.info.start_time / 1000
        self.ranks = RankReports()
        self.attempts = Attempts(self.ranks, opened, first_attempt)
        self._latest: dict[str, float] = {}
        self._curves: dict[str, Points] = {SAMPLES: []}
        self._memory: dict[str, dict[str, float]] = {}
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._slow = ""
        self._status, self._error, self._stopped = "RUNNING", "", ""

    def text_of(self, error: BaseException | None) -> str:
        """An error's message without secrets; empty without an error."""
        return "" if error is None else self._redact(str(error) or type(error).__name__)

    def begin_attempt(self, attempt: int) -> None:
        """See ``Reports.begin_attempt``."""
        self.attempts.begin(attempt)

    def end_attempt(self, error: BaseException | None, growth: str = "") -> None:
        """See ``Reports.end_attempt``."""
        self.attempts.end(self.text_of(error), growth)

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        self.add(world, report)

    def add(self, world: World, report: dict[str, Any]) -> list[Entry]:
        """Takes a rank's report; see ``RankReports.add``."""
        entries = self.ranks.add(world, report)
        if world.rank == 0:
            latest = report["latest"].items()
            self._latest = {self._redact.name(name): value for name, value in latest}
            rated, seconds = self._curves[SAMPLES], time.time() - self._began_at
            if report["step"] and (not rated or seconds - rated[-1][0] >= RATE_SECONDS):
                totals = self.ranks.totals().values()
                _add(rated, seconds, sum(counts.samples for counts in totals))
        return entries

    def logged(self, world: World, entries: list[Entry]) -> None:
        """See ``Reports.logged``."""
        for kind, name, value, *rest in entries:
            if kind == "metric" and not name.startswith(OF_THE_RUN) and math.isfinite(value):
                name = self._redact.name(name)
                if name in self._curves or len(self._curves) <= MAX_FIGURES:
                    _add(self._curves.setdefault(name, []), rest[1], value)

    def printed(self, world: World, lines: list[str]) -> bool:
        """See ``Reports.printed``."""
        self._lines += [f"[rank {world.rank}] {line[:MAX_LINE_CHARACTERS]}" for line in lines]
        return False

    def host_metrics(self, world: World, values: dict[str, float]) -> None:
        """See ``Reports.host_metrics``."""
        self._memory[world.place] = {name: values[name] for name in values if "memory" in name}

    def slow_ranks(self, text: str) -> None:
        """See ``Reports.slow_ranks``."""
        self._slow = text

    def end(self, status: str, error: BaseException | None, stopped: str) -> None:
        """Says how the run ended: MLflow's word, the error, and why it was asked to end early."""
        self._status, self._error, self._stopped = status, self.text_of(error), stopped

    def facts(self) -> dict[str, Any]:
        """What a ``RunSummary`` has that MLflow's run has not."""
        return {
            "attempts": self.attempts.rows(),
            "totals": self.ranks.totals(),
            "hosts": self.ranks.hosts(),
            "time_use": self.attempts.sentence(),
            "error": self._error,
            "stopped": self._stopped,
            "status": self._status,
            "slow_ranks": self._slow,
            "curves": {name: list(points) for name, points in list(self._curves.items())},
            "memory": dict(self._memory),
            "lines": list(self._lines),
        }

    def summary(self) -> RunSummary:
        """How it stands now, by what this driver knows."""
        return RunSummary(
            name=self.name,
            run_id=self._run_id,
            began_at=self._began_at,
            ended_at=time.time(),
            num_ranks=str(self.ranks.world_size or "?"),
            num_hosts=str(self.ranks.num_hosts or "?"),
            metrics=self._latest,
            total_steps=self.ranks.total_steps,
            seconds_left=self.ranks.seconds_left(),
            **self.facts(),
        )


def _add(points: Points, x: float, y: float) -> None:
    """Adds a point. A restarted training repeats steps: what it had there before goes."""
    while points and points[-1][0] >= x:
        points.pop()
    if len(points) > 1 and points[-1][0] - points[-2][0] < RESOLUTION * (x - points[0][0]):
        points.pop()
    points.append((x, y))

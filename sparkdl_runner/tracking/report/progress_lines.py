"""Lines on the driver in place of a progress bar: ranks have started, and how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sparkdl_runner.base.shown_text import line, tell
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.report.performance import Counts, samples_per_second
from sparkdl_runner.tracking.report.progress_bar import MAX_METRICS

LINE_SECONDS = 30.0


class ProgressLines(Reports):
    """Says when all ranks of an attempt have started, then how far rank 0 is.

    Args:
        now: The clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._attempt: int | None = None
        self._hosts: dict[int, str] = {}
        self._counts: dict[int, Counts] = {}
        self._latest: dict[str, Any] | None = None
        self._said_at = 0.0
        self._said: tuple[Any, dict[str, float]] = (None, {})

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        if world.attempt != self._attempt:
            self._attempt = world.attempt
            self._hosts, self._counts, self._latest = {}, {}, None
        is_new = world.rank not in self._hosts
        self._hosts[world.rank] = world.host_id
        self._counts[world.rank] = Counts.of(report)
        if is_new and len(self._hosts) == world.size:
            hosts = len(set(self._hosts.values()))
            again = f" again, attempt {world.attempt}" if world.attempt else ""
            self._say(f"{_count(world.size, 'rank')} on {_count(hosts, 'host')} started{again}")
        if world.rank != 0 or report["step"] is None:
            return
        self._latest = report
        if report["step"] != self._said[0] and self._now() - self._said_at >= LINE_SECONDS:
            self._say_step(report)

    def close(self) -> None:
        """Says what the last metrics are, unless that was the last line."""
        if self._latest is not None and _values_of(self._latest) != self._said:
            self._say_step(self._latest)

    def _say_step(self, report: dict[str, Any]) -> None:
        self._said = _values_of(report)
        of_all = f" of {report['total_steps']:,}" if report["total_steps"] else ""
        parts = [f"step {report['step']:,}{of_all}"]
        if report["epoch"] is not None:
            parts.append(f"epoch {report['epoch']}")
        for name, value in list(report["latest"].items())[:MAX_METRICS]:
            parts.append(f"{line(name)} {value:.4g}")
        if rate := samples_per_second(self._counts.values()):
            parts.append(f"{rate:,.0f} samples/s")
        self._say(", ".join(parts))

    def _say(self, text: str) -> None:
        self._said_at = self._now()
        tell(text)


def _values_of(report: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    return report["step"], dict(report["latest"])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"

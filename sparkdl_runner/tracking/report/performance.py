"""Turns what ranks count into metrics: samples/s, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.time_use import PARTS

# MLflow shows these metrics on a page of their own, so that many ranks do not hide the training's.
SYSTEM_PREFIX = "system/"
THROUGHPUT = "samples_per_second"
# Metrics of a run that say nothing of the models that it logs.
OF_THE_RUN = (SYSTEM_PREFIX, THROUGHPUT)
# Ranks are shown one by one in what differs between them by more than this share of a step, once
# so many seconds have been sampled: less is chance.
_APART, _SURE_SECONDS = 0.2, 5.0
# A page with metrics of more ranks is of no use; the means over all ranks stay.
MAX_SHOWN_RANKS = 32


@dataclass(kw_only=True)
class Counts:
    """The counts of one rank."""

    steps: int = 0
    samples: int = 0
    running_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @classmethod
    def of(cls, report: dict[str, Any]) -> Counts:
        """Reads a rank's report."""
        return cls(
            steps=int(report["steps"]),
            samples=int(report["samples"]),
            running_seconds=float(report["running_seconds"]),
            seconds={part: float(report["seconds"].get(part, 0.0)) for part in PARTS},
        )

    def plus(self, other: Counts, times: int = 1) -> Counts:
        """The sum; with ``times=-1``, the difference."""
        return Counts(
            steps=self.steps + times * other.steps,
            samples=self.samples + times * other.samples,
            running_seconds=self.running_seconds + times * other.running_seconds,
            seconds={part: self.seconds[part] + times * other.seconds[part] for part in PARTS},
        )

    def per_step(self, part: str) -> float:
        """The seconds of a step that go into a part."""
        return self.seconds[part] / self.steps


def samples_per_second(ranks: Iterable[Counts]) -> float:
    """The rate of all ranks since they began; 0 if unknown."""
    counted = list(ranks)
    running = max((counts.running_seconds for counts in counted), default=0.0)
    return sum(counts.samples for counts in counted) / running if running > 0 else 0.0


class Performance:
    """Keeps the counts of all ranks, by rank, and turns what was added into metrics."""

    def __init__(self) -> None:
        self._now: dict[int, Counts] = {}
        self._told: dict[int, Counts] = {}
        """The counts of each rank that are in its metrics already."""
        self._rated: dict[int, Counts] = {}
        """The counts that are in the rate of all ranks already."""
        self._earlier: dict[int, Counts] = {}
        """Over the attempts before this one."""
        self._apart: set[str] = set()
        """The parts of a step in which ranks were seen to differ."""

    def begin_attempt(self) -> None:
        """Says that ranks count from zero again."""
        self._earlier = self.totals()
        self._now, self._told, self._rated = {}, {}, {}

    def totals(self) -> dict[int, Counts]:
        """The counts of each rank, over all attempts."""
        nothing = Counts()
        return {
            rank: self._earlier.get(rank, nothing).plus(self._now.get(rank, nothing))
            for rank in sorted({*self._earlier, *self._now})
        }

    def means(self) -> Counts:
        """The mean of the ranks of this attempt, of what their steps took."""
        ranks = [counts for counts in self._now.values() if counts.steps]
        if not ranks:
            return Counts()
        return Counts(
            steps=max(counts.steps for counts in ranks),
            running_seconds=fmean(counts.running_seconds for counts in ranks),
            seconds={part: fmean(counts.seconds[part] for counts in ranks) for part in PARTS},
        )

    def see(self, rank: int, report: dict[str, Any]) -> None:
        """Takes a rank's report."""
        self._now[rank] = Counts.of(report)

    def entries(self, step: int, timestamp_ms: int, world_size: int) -> list[Entry]:
        """Metrics of what was added since the last call: none before any rank made a step."""
        active = self._added_since(self._told)
        if not active:
            return []
        self._told = dict(self._now)
        values: dict[str, float] = {}
        self._apart |= self._differing()
        for rank, counts in list(active.items())[:MAX_SHOWN_RANKS]:
            prefix = f"{SYSTEM_PREFIX}rank_{rank}/step_seconds/"
            values |= {f"{prefix}{part}": counts.per_step(part) for part in self._apart}
        # The rate of some ranks is not that of all: wait until each has added something.
        unrated = self._added_since(self._rated)
        if len(unrated) == world_size:
            self._rated = dict(self._now)
            if any(counts.samples for counts in unrated.values()):
                rates = [counts.samples / counts.running_seconds for counts in unrated.values()]
                values[THROUGHPUT] = sum(rates)
        prefix = f"{SYSTEM_PREFIX}step_seconds/"
        for part in PARTS:
            values[f"{prefix}{part}"] = fmean(counts.per_step(part) for counts in active.values())
        values[f"{prefix}total"] = fmean(
            counts.running_seconds / counts.steps for counts in active.values()
        )
        return [["metric", name, value, timestamp_ms, step, {}] for name, value in values.items()]

    def _differing(self) -> set[str]:
        """The parts of a step of which some rank's share is another one than some other's."""
        ranks = [counts for counts in self._now.values() if counts.running_seconds >= _SURE_SECONDS]
        shares = {
            part: [counts.seconds[part] / counts.running_seconds for counts in ranks]
            for part in PARTS
        }
        return {part for part, all_ in shares.items() if all_ and max(all_) - min(all_) > _APART}

    def _added_since(self, before: dict[int, Counts]) -> dict[int, Counts]:
        added = {
            rank: counts.plus(before.get(rank, Counts()), times=-1)
            for rank, counts in sorted(self._now.items())
        }
        return {
            rank: counts
            for rank, counts in added.items()
            if counts.steps and counts.running_seconds > 0
        }


def host_entries(
    world: World, values: Mapping[str, float], *, began_at: float, now: float
) -> list[Entry]:
    """Metrics of what was measured on a host, under its name where there are several.

    Args:
        world: A rank of that host.
        values: By name.
        began_at: When the run began, in seconds since the epoch; steps are seconds since then.
        now: The time, in seconds since the epoch.
    """
    several = world.local_size < world.size
    prefix = f"{SYSTEM_PREFIX}{world.host}-{world.host_id}/" if several else SYSTEM_PREFIX
    at_ms, step = int(now * 1000), int(now - began_at)
    return [["metric", f"{prefix}{name}", value, at_ms, step, {}] for name, value in values.items()]

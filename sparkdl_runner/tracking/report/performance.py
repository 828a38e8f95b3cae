"""From what ranks count to what a person reads: samples/s, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.time_use import PARTS
from sparkdl_runner.world import World

# MLflow shows what begins so on a page of its own: the training's own curves stay in sight, however
# many ranks there are.
SYSTEM_PREFIX = "system/"
# How fast a training was: of the run, and not of the models that it logs.
OF_THE_RUN = (SYSTEM_PREFIX, "samples_per_second")
# Beyond so many ranks, a page of metrics for each is no help; the totals stay.
MAX_SHOWN_RANKS = 32


@dataclass(kw_only=True)
class Counts:
    """What one rank of one attempt has counted since it began."""

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

    def since(self, before: Counts) -> Counts:
        """What was added."""
        return Counts(
            steps=self.steps - before.steps,
            samples=self.samples - before.samples,
            running_seconds=self.running_seconds - before.running_seconds,
            seconds={part: self.seconds[part] - before.seconds[part] for part in PARTS},
        )

    def plus(self, other: Counts) -> Counts:
        """The sum."""
        return Counts(
            steps=self.steps + other.steps,
            samples=self.samples + other.samples,
            running_seconds=self.running_seconds + other.running_seconds,
            seconds={part: self.seconds[part] + other.seconds[part] for part in PARTS},
        )


def samples_per_second(ranks: Iterable[Counts]) -> float:
    """The rate of all ranks since they began, which is the one that is shown; 0 if unknown."""
    counted = list(ranks)
    running = max((one.running_seconds for one in counted), default=0.0)
    return sum(one.samples for one in counted) / running if running > 0 else 0.0


class Performance:
    """Keeps the counts of all ranks, and turns what was added into metrics."""

    def __init__(self) -> None:
        self._now: dict[int, Counts] = {}
        self._told: dict[int, Counts] = {}
        self._rated: dict[int, Counts] = {}
        """What went into the rate of all ranks already."""
        self._earlier: dict[int, Counts] = {}
        """By rank, over the attempts before this one."""

    def begin_attempt(self) -> None:
        """Says that ranks begin to count anew."""
        self._earlier = self.totals()
        self._now, self._told, self._rated = {}, {}, {}

    def totals(self) -> dict[int, Counts]:
        """What each rank counted, over all attempts."""
        ranks = sorted({*self._earlier, *self._now})
        nothing = Counts()
        return {
            rank: self._earlier.get(rank, nothing).plus(self._now.get(rank, nothing))
            for rank in ranks
        }

    def see(self, rank: int, report: dict[str, Any]) -> None:
        """Takes a rank's report."""
        self._now[rank] = Counts.of(report)

    def entries(self, step: int, timestamp_ms: int, world_size: int) -> list[Entry]:
        """Metrics of what was added since the last call: none before any rank made a step."""
        active = self._added_since(self._told)
        if not active:
            return []
        self._told = dict(self._now)
        found: dict[str, float] = {}
        for rank, one in list(active.items())[:MAX_SHOWN_RANKS]:
            found |= _figures(one, f"{SYSTEM_PREFIX}rank_{rank}/")
        ranks = len(active)
        # The rate of some is not that of all: what a rank adds waits until each has added.
        unrated = self._added_since(self._rated)
        if len(unrated) == world_size:
            self._rated = dict(self._now)
            if any(one.samples for one in unrated.values()):
                found["samples_per_second"] = sum(
                    one.samples / one.running_seconds for one in unrated.values()
                )
        for part in PARTS:
            name = f"{SYSTEM_PREFIX}step_seconds/{part}"
            found[name] = sum(one.seconds[part] / one.steps for one in active.values()) / ranks
        total = sum(one.running_seconds / one.steps for one in active.values())
        found[f"{SYSTEM_PREFIX}step_seconds/total"] = total / ranks
        return [["metric", name, value, timestamp_ms, step, {}] for name, value in found.items()]

    def _added_since(self, before: dict[int, Counts]) -> dict[int, Counts]:
        added = {
            rank: counts.since(before.get(rank, Counts()))
            for rank, counts in sorted(self._now.items())
        }
        return {rank: one for rank, one in added.items() if one.steps and one.running_seconds > 0}


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


def _figures(counts: Counts, prefix: str) -> dict[str, float]:
    found = {f"{prefix}step_seconds/{part}": counts.seconds[part] / counts.steps for part in PARTS}
    if counts.samples:
        found[f"{prefix}samples_per_second"] = counts.samples / counts.running_seconds
    return found

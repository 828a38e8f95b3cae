"""A rank that computes or reads for longer than the others, named while the training goes on.

All ranks wait for the slowest at each step. So one slow host costs as much as if all were slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import World
from sparkdl_runner.tracking.report.performance import Counts
from sparkdl_runner.tracking.time_use import COMPUTE, DATA, LABELS

# Ranks' time is sampled: what was sampled for less than this is chance.
SURE_SECONDS = 2.5
# A part that is slow and hardly counts in a step is not worth a word.
LEAST_SHARE = 0.1
# A rank is named once it was slow in each half of the steps: a busy host may be for a moment.
SPANS = 2
# And once its ratios are beyond the factor by more than chance. Other work on a host makes those of
# equal ranks differ: their logarithm by so much in a span, and by less in the mean of several.
NOISE = 0.4


@dataclass(frozen=True, kw_only=True)
class SlowPart:
    """A part of a rank's steps that took longer than on other ranks, over one span."""

    rank: int
    part: str
    seconds: float
    """Of each step."""
    usual_seconds: float
    """The median of the other ranks."""


class SlowRanks(Reports):
    """Compares the ranks of an attempt, span by span.

    Args:
        factor: Beyond how many times the median of the others a rank is slow.
        steps: How many steps two spans have at least.
        say: Takes a text whenever other ranks are slow than before; and a reason to stop, in at
            most 200 bytes, empty if none is slow any more.
    """

    def __init__(self, factor: float, steps: int, say: Callable[[str, str], None]) -> None:
        self._factor = factor
        self._steps = steps
        self._say = say
        self._attempt = -1
        self._forget()

    def _forget(self) -> None:
        self._worlds: dict[int, World] = {}
        self._now: dict[int, Counts] = {}
        self._since: dict[int, Counts] = {}
        self._rows: dict[tuple[int, str], list[float]] = {}
        """How far a part of a rank was beyond the factor, in each span since it is slow."""
        self._named: set[tuple[int, str]] = set()

    def progress(self, world: World, report: dict[str, Any]) -> None:
        """See ``Reports.progress``."""
        if world.attempt != self._attempt:
            self._attempt, was_named = world.attempt, bool(self._named)
            self._forget()
            if was_named:
                self._say("no rank is slower than the others any more", "")
        self._worlds[world.rank] = world
        self._now[world.rank] = Counts.of(report)
        self._since.setdefault(world.rank, self._now[world.rank])
        if len(self._now) < max(2, world.size):
            return
        spans = {rank: now.plus(self._since[rank], -1) for rank, now in self._now.items()}
        if all(
            span.steps >= self._steps / SPANS and span.running_seconds >= SURE_SECONDS
            for span in spans.values()
        ):
            self._since = dict(self._now)
            self._compare(slow_parts(spans, self._factor))

    def _compare(self, slow: list[SlowPart]) -> None:
        found = {(one.rank, one.part): one for one in slow}
        # A part that took the others no time at all counts as ten times theirs.
        usual = {key: max(one.usual_seconds, 0.1 * one.seconds) for key, one in found.items()}
        beyond = {key: math.log(found[key].seconds / usual[key] / self._factor) for key in found}
        self._rows = {key: [*self._rows.get(key, ()), beyond[key]] for key in found}
        named = self._named & found.keys()
        for key, row in self._rows.items():
            if len(row) >= SPANS and sum(row) > NOISE * math.sqrt(len(row)):
                named.add(key)
        if named == self._named:
            return
        self._named = named
        if not named:
            self._say("no rank is slower than the others any more", "")
            return
        first = self._worlds[min(named)[0]]
        self._say(
            "; ".join(self._described(found[key]) for key in sorted(named)),
            f"rank {first.rank} on {first.host:.150} is slow",
        )

    def _described(self, slow: SlowPart) -> str:
        return (
            f"rank {slow.rank} on {self._worlds[slow.rank].place} is slow: its "
            f"{LABELS[slow.part]} takes {1000 * slow.seconds:.3g} ms of a step, and "
            f"{1000 * slow.usual_seconds:.3g} ms on the other ranks, which wait for it"
        )


def slow_parts(spans: Mapping[int, Counts], factor: float) -> list[SlowPart]:
    """The parts of ranks' steps that are slow.

    Args:
        spans: What each rank has counted meanwhile.
        factor: See ``SlowRanks``.
    """
    slow = []
    for rank, span in spans.items():
        for part in (DATA, COMPUTE):
            seconds = span.per_step(part)
            usual = median_high(other.per_step(part) for key, other in spans.items() if key != rank)
            matters = (seconds - usual) * span.steps > LEAST_SHARE * span.running_seconds
            if seconds > factor * usual and matters:
                slow.append(SlowPart(rank=rank, part=part, seconds=seconds, usual_seconds=usual))
    return slow

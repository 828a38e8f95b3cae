"""A case: one piece of work, which this package and its peers do in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Measure = Callable[[], Mapping[str, float]]
"""Measures once, and returns a number for each figure of its case."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One quantity of a case.

    Attributes:
        unit: Of its numbers, such as ``"s"`` or ``"rows/s"``.
        better: Which of two numbers is the better one.
        least_ratios: Goals by side of ours: over the turns, the median of how many times as good
            it is as each peer.
        least_worst_ratios: The same of its worst turn.
        bound: A goal: our worst number is no worse than this.
    """

    unit: str
    better: Literal["more", "less"]
    least_ratios: Mapping[str, float] = field(default_factory=dict)
    least_worst_ratios: Mapping[str, float] = field(default_factory=dict)
    bound: float | None = None

    def times_as_good(self, ours: float, theirs: float) -> float:
        """How many times as good our number is; neither is 0."""
        return ours / theirs if self.better == "more" else theirs / ours

    def worst(self, values: list[float]) -> float:
        """The worst of several numbers."""
        return min(values) if self.better == "more" else max(values)


@dataclass(frozen=True, kw_only=True)
class Case:
    """The same work, done by this package and by its peers in turns.

    Attributes:
        name: Unique within its part.
        figures: What each side measures.
        ours: By name the ways of this package.
        peers: By name what a user would take instead.
        limits: By name what does less than the work, so that no side can pass it; no ratios.
        turns: How often each side measures; all ratios are of the same turn.
        most_turns: More turns follow, up to so many, until the ratios of all figures with a goal
            are known to 2 %. By default none.
        warm_ups: Turns before these. The first of them is reported as the cold figure, and no
            other number of theirs counts. None where each measurement has a process of its own.
        turns_repeat: Whether all turns are of the same work, so that what differs is noise.
        facts: What a reader must know: ranks, the batch of a rank and of all, what the time
            includes, whether more ranks have the same work each (``"scaling": "weak"``) or share
            it (``"strong"``), and which case has one rank (see :mod:`benchmarks.suite.scaling`).
    """

    name: str
    figures: Mapping[str, Figure]
    ours: Mapping[str, Measure]
    peers: Mapping[str, Measure] = field(default_factory=dict)
    limits: Mapping[str, Measure] = field(default_factory=dict)
    turns: int = 1
    most_turns: int | None = None
    warm_ups: int = 0
    turns_repeat: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sides(self) -> dict[str, Measure]:
        """Ours, the peers and the limits."""
        return {**self.ours, **self.peers, **self.limits}

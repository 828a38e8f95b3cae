"""Runs a case: each side measures once in each turn, so that all share good and bad moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.suite.case import Case
from benchmarks.suite.statistics import interval

KNOWN_TO = 0.02
"""Half the interval of a ratio, relative to it, at which no more turns are needed."""


def run(case: Case) -> dict[str, Any]:
    """Measures a case.

    Returns:
        Its report: see :func:`benchmarks.suite.report.case_report`'s argument ``found``: by side
        ``"cold"``, ``"values"`` and, where it failed, ``"unavailable"``, its reason.
    """
    print(f"{case.name}:", flush=True)
    found: dict[str, Any] = {side: {"cold": None, "values": []} for side in case.sides}
    for warm_up in range(case.warm_ups):
        print("  warm-up", flush=True)
        for side, numbers in _turn(case, found, warm_up).items():
            found[side]["cold"] = found[side]["cold"] or numbers
    turn = 0
    while turn < case.turns or (turn < (case.most_turns or 0) and not _are_known(case, found)):
        print(f"  turn {turn + 1} of {max(turn + 1, case.turns)}", flush=True)
        for side, numbers in _turn(case, found, turn).items():
            found[side]["values"].append(numbers)
        turn += 1
    return found


def _turn(case: Case, found: Mapping[str, Any], number: int) -> dict[str, dict[str, float]]:
    """One measurement of each side. Each is first in some turn: a slow one hits the next."""
    sides = list(case.sides)
    first = number % len(sides)
    numbers = {}
    for side in sides[first:] + sides[:first]:
        if "unavailable" in found[side]:
            continue
        try:
            numbers[side] = dict(case.sides[side]())
        except Exception as error:
            found[side]["unavailable"] = reason_of(error)
            print(f"  {side}: {found[side]['unavailable']}", flush=True)
    return numbers


def _are_known(case: Case, found: Mapping[str, Any]) -> bool:
    for name, figure in case.figures.items():
        for ours in figure.least_ratios:
            for peer in case.peers:
                ratios = pair_ratios(case, found, name, ours, peer)
                low, high = interval(ratios) if ratios else (1.0, 1.0)
                if high - low > 2 * KNOWN_TO * (high + low) / 2:
                    return False
    return True


def pair_ratios(
    case: Case, found: Mapping[str, Any], figure: str, ours: str, peer: str
) -> list[float]:
    """How many times as good one of ours was as a peer, turn by turn; empty if one failed.

    A turn in which one of them had nothing has no ratio.
    """
    if "unavailable" in found[ours] or "unavailable" in found[peer]:
        return []
    return [
        case.figures[figure].times_as_good(mine[figure], theirs[figure])
        for mine, theirs in zip(found[ours]["values"], found[peer]["values"], strict=True)
        if mine.get(figure) and theirs.get(figure)
    ]


def reason_of(error: BaseException) -> str:
    """The first line of what went wrong."""
    return f"{type(error).__name__}: {error}".splitlines()[0]

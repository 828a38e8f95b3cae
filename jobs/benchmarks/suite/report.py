"""The report of a case, of a part and of all parts, as JSON has it."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.suite.case import Case
from benchmarks.suite.machine import machine
from benchmarks.suite.statistics import LEAST_PAIRS, NOISE, interval, spread
from benchmarks.suite.turns import pair_ratios


def case_report(case: Case, found: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a case.

    Args:
        case: Which.
        found: By side ``"cold"``, its first warm-up, and ``"values"``, a mapping of numbers for
            each turn; or ``"unavailable"``, the reason why it failed.
    """
    figures = {name: _figure_report(case, name, found) for name in case.figures}
    unavailable = {
        side: one.get("unavailable", "no number")
        for side, one in found.items()
        if not any(side in figure["sides"] for figure in figures.values())
    }
    return {
        "name": case.name,
        "facts": dict(case.facts),
        "ours": list(case.ours),
        "turns": max(len(one["values"]) for one in found.values()),
        "warm_ups": case.warm_ups,
        "figures": figures,
        "unavailable": unavailable,
        "missed": list(_missed(case, figures, unavailable)),
        "undecided": list(_undecided(case, figures)),
    }


def _figure_report(case: Case, name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    figure = case.figures[name]
    sides = {}
    for side, one in found.items():
        values = [numbers[name] for numbers in one["values"] if name in numbers]
        if "unavailable" in one or not values:
            continue
        sides[side] = {
            "values": values,
            "cold": (one["cold"] or {}).get(name),
            "median": statistics.median(values),
            "worst": figure.worst(values),
            "spread": spread(values),
            "is_noise": case.turns_repeat and spread(values) > NOISE,
        }
    ratios: dict[str, dict[str, Any]] = {}
    for ours in case.ours:
        for peer in case.peers:
            if pairs := pair_ratios(case, found, name, ours, peer):
                ratios.setdefault(ours, {})[peer] = {
                    "median": statistics.median(pairs),
                    "worst": min(pairs),
                    "interval": interval(pairs),
                    "pairs": len(pairs),
                }
    goals = {
        "least_ratios": figure.least_ratios,
        "least_worst_ratios": figure.least_worst_ratios,
        "bound": figure.bound,
    }
    return {"unit": figure.unit, "better": figure.better, **goals, "sides": sides, "ratios": ratios}


def _missed(
    case: Case, figures: Mapping[str, Any], unavailable: Mapping[str, str]
) -> Iterator[str]:
    """A sentence for each goal that was missed."""
    for side in case.ours:
        if side in unavailable:
            yield f"{case.name}: {side} gave no figure: {unavailable[side]}"
    for name, figure in case.figures.items():
        for side, numbers in figures[name]["sides"].items():
            if side in case.ours and figure.bound is not None:
                worst = numbers["worst"]
                if figure.worst([worst, figure.bound]) != figure.bound:
                    most = "at least" if figure.better == "more" else "at most"
                    unit = f" {figure.unit}" if figure.unit else ""
                    yield (
                        f"{case.name}: {name} of {side} was {worst:.4g}{unit} at worst, and "
                        f"should be {most} {figure.bound:.4g}"
                    )
        yield from (text for text, is_missed in _not_kept(case, name, figures[name]) if is_missed)


def _undecided(case: Case, figures: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each goal of a ratio on which the turns that were measured do not decide."""
    for name, figure in case.figures.items():
        for side in figure.least_ratios.keys() | figure.least_worst_ratios.keys():
            if side in case.ours and not figures[name]["ratios"].get(side):
                yield f"{case.name}: {name} of {side} had no peer beside it"
        for text, is_missed in _not_kept(case, name, figures[name]):
            if not is_missed:
                yield f"{text}; too few turns or too much noise to be sure"


def _not_kept(case: Case, name: str, found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """A sentence for each goal of a ratio that is not surely kept, and whether it is missed."""
    figure = case.figures[name]
    for side, peers in found["ratios"].items():
        for peer, ratio in peers.items():
            worst, are_enough = ratio["worst"], ratio["pairs"] >= LEAST_PAIRS
            goals = {
                "": (figure.least_ratios, ratio["median"], ratio["interval"]),
                " at worst": (figure.least_worst_ratios, worst, (worst, worst)),
            }
            for when, (least, times, (low, high)) in goals.items():
                if side in least and not (are_enough and low >= least[side]):
                    text = (
                        f"{case.name}: {name} of {side} was {times:.3f} times as good as that of "
                        f"{peer}{when}, and should be {least[side]:g} times"
                    )
                    yield text, are_enough and high < least[side]


def part_report(settings: Mapping[str, Any], cases: list[dict[str, Any]]) -> dict[str, Any]:
    """The report of a part, with the settings of its command."""
    cores = machine()["physical_cores"]
    for case in cases:
        ranks = case["facts"].get("ranks", 1)
        if isinstance(ranks, int) and ranks > cores:
            efficiency = f"not quoted: {ranks} ranks share {cores} physical cores"
            case["facts"]["scaling_efficiency"] = efficiency
    return {"settings": settings, "cases": cases}


def suite_report(
    command: str,
    date: str,
    versions: Mapping[str, str],
    parts: Mapping[str, Any],
    kept: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole report.

    Args:
        command: What was run.
        date: When, as ``2026-11-30``.
        versions: Of all that ran.
        parts: By name each part's report.
        kept: An earlier report, whose other parts stay, each with where it is from.
    """
    where = {"machine": machine(), "versions": dict(versions)}
    if kept:
        origin = {name: kept[name] for name in ("command", "date", *where)}
        old = {name: {"from": origin, **one} for name, one in kept["parts"].items()}
        parts = old | {name: one for name, one in parts.items() if one["cases"] or name not in old}
    settings = {name: (one["settings"], one.get("from")) for name, one in parts.items()}
    canonical = json.dumps([where, settings], sort_keys=True, default=str)
    return {
        "command": command,
        "date": date,
        "configuration": hashlib.sha256(canonical.encode()).hexdigest(),
        **where,
        "parts": dict(parts),
    }


def missed(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each goal that was missed, and for each part that did not end."""
    sentences = []
    for name, part in report["parts"].items():
        if "unavailable" in part:
            sentences.append(f"{name} gave no more figures: {part['unavailable']}")
        sentences += [f"{name}: {one}" for case in part["cases"] for one in case["missed"]]
    return sentences


def undecided(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each goal on which the turns do not decide."""
    parts = report["parts"].items()
    return [
        f"{name}: {one}" for name, part in parts for c in part["cases"] for one in c["undecided"]
    ]

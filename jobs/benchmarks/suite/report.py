"""The report of a case, of a part and of all parts, as JSON has it."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.suite.case import Case, Figure
from benchmarks.suite.machine import machine, versions
from benchmarks.suite.statistics import NOISE, interval, spread
from benchmarks.suite.turns import pair_ratios


def case_report(case: Case, found: Mapping[str, Any]) -> dict[str, Any]:
    """What a case showed.

    Args:
        case: Which.
        found: By side ``"cold"``, its first warm-up, and ``"values"``, a mapping of numbers for
            each turn; or ``"unavailable"``, the reason why it failed.
    """
    figures = {name: _figure_report(case, name, found) for name in case.figures}
    unavailable = {side: one["unavailable"] for side, one in found.items() if "unavailable" in one}
    return {
        "name": case.name,
        "facts": {**case.facts, **_efficiency_note(case.facts)},
        "ours": list(case.ours),
        "turns": max(len(one["values"]) for one in found.values()),
        "warm_ups": case.warm_ups,
        "figures": figures,
        "unavailable": unavailable,
        "missed": list(_missed(case, figures, unavailable)),
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
        yield from _missed_of(case, name, figure, figures[name])


def _missed_of(case: Case, name: str, figure: Figure, found: Mapping[str, Any]) -> Iterator[str]:
    for side in case.ours:
        numbers = found["sides"].get(side)
        if figure.bound is not None and numbers:
            worst = numbers["worst"]
            if figure.worst([worst, figure.bound]) != figure.bound:
                most = "at least" if figure.better == "more" else "at most"
                yield (
                    f"{case.name}: {name} of {side} was {worst:.4g} {figure.unit} at worst, and "
                    f"should be {most} {figure.bound:.4g}"
                )
        for peer, ratio in found["ratios"].get(side, {}).items():
            goals = {
                "": (figure.least_ratios, ratio["median"]),
                " at worst": (figure.least_worst_ratios, ratio["worst"]),
            }
            for when, (least, times) in goals.items():
                if side in least and times < least[side]:
                    yield (
                        f"{case.name}: {name} of {side} was {times:.3f} times as good as that of "
                        f"{peer}{when}, and should be {least[side]:g} times"
                    )


def _efficiency_note(facts: Mapping[str, Any]) -> dict[str, str]:
    """A word on scaling efficiency, where ranks have no core each."""
    ranks, cores = facts.get("ranks", 1), machine()["physical_cores"]
    if not isinstance(ranks, int) or ranks <= cores:
        return {}
    return {"scaling_efficiency": f"none: {ranks} ranks share {cores} physical cores"}


def part_report(settings: Mapping[str, Any], cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What a part showed, with the settings of its command."""
    return {"settings": settings, "cases": cases}


def suite_report(command: str, date: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report.

    Args:
        command: What was run.
        date: When, as ``2026-11-30``.
        parts: By name each part's report.
    """
    where = {"machine": machine(), "versions": versions()}
    settings = {name: one["settings"] for name, one in parts.items()}
    canonical = json.dumps([where, settings], sort_keys=True, default=str)
    return {
        "command": command,
        "date": date,
        "configuration": hashlib.sha256(canonical.encode()).hexdigest(),
        **where,
        "parts": dict(parts),
    }


def missed(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each goal that was missed, and for each part that gave none."""
    sentences = []
    for name, part in report["parts"].items():
        if "unavailable" in part:
            sentences.append(f"{name} gave no figures: {part['unavailable']}")
        sentences += [f"{name}: {one}" for case in part["cases"] for one in case["missed"]]
    return sentences

"""Two reports beside each other: ratios to peers alone, as times of two machines say nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.suite.statistics import LEAST_PAIRS
from benchmarks.suite.text import aligned


def comparison(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A table of the ratios that both reports have; those that surely differ are marked."""
    before, now, rows = dict(_ratios(old)), dict(_ratios(new)), []
    for key in before.keys() & now.keys():
        was, one = before[key], now[key]
        medians = was["median"], one["median"], one["median"] / was["median"]
        rows.append((": ".join(key), *(f"{value:.2f}" for value in medians), _verdict(was, one)))
    notes = [
        f"{part} was measured with other settings."
        for part in old["parts"].keys() & new["parts"].keys()
        if old["parts"][part]["settings"] != new["parts"][part]["settings"]
    ]
    if alone := len(before.keys() ^ now.keys()):
        notes.append(f"{alone} ratios are in one of the reports alone.")
    if not rows:
        notes.append(f"The report of {old['date']} has no ratio that this one has.")
        return "\n".join(sorted(notes))
    head = ("times as good as the peer", old["date"], "now", "now / then", "")
    return "\n".join([aligned(iter([head, *sorted(rows)])), *sorted(notes)])


def _ratios(report: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for part, one in report["parts"].items():
        for case in one["cases"]:
            for name, figure in case["figures"].items():
                for ours, peers in figure["ratios"].items():
                    for peer, ratio in peers.items():
                        yield (part, case["name"], name, f"{ours} / {peer}"), ratio


def _verdict(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    (was_low, was_high), (low, high) = was["interval"], now["interval"]
    if min(was["pairs"], now["pairs"]) < LEAST_PAIRS or (low <= was_high and was_low <= high):
        return ""
    return "worse" if high < was_low else "better"

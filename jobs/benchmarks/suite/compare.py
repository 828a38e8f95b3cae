"""Two reports beside each other: ratios to peers alone, as times of two machines say nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.suite.text import aligned


def comparison(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A table of the ratios that both reports have; those that surely differ are marked."""
    before, rows = dict(_ratios(old)), []
    for key, now in _ratios(new):
        if key in before:
            was = before[key]
            rows.append(
                (
                    ": ".join(key),
                    f"{was['median']:.2f}",
                    f"{now['median']:.2f}",
                    f"{now['median'] / was['median']:.2f}",
                    _verdict(was["interval"], now["interval"]),
                )
            )
    if not rows:
        return f"The report of {old['date']} has no ratio that this one has."
    head = ("times as good as the peer", old["date"], "now", "now / then", "")
    return aligned(iter([head, *rows]))


def _ratios(report: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for part, one in report["parts"].items():
        for case in one["cases"]:
            for name, figure in case["figures"].items():
                for ours, peers in figure["ratios"].items():
                    for peer, ratio in peers.items():
                        yield (part, case["name"], name, f"{ours} / {peer}"), ratio


def _verdict(was: Any, now: Any) -> str:
    if now[1] < was[0]:
        return "worse"
    return "better" if now[0] > was[1] else ""

"""A report as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

from benchmarks.suite.report import missed, undecided


def text(report: Mapping[str, Any]) -> str:
    """All parts. Cases that measure the same figures share a table."""
    lines: list[str] = []
    for name, part in report["parts"].items():
        if "unavailable" in part:
            lines += ["", f"{name}: no more figures: {part['unavailable']}"]
        for _, cases in groupby(part["cases"], key=_headings):
            lines += ["", aligned(_rows(name, list(cases)))]
    goals = [f"Missed: {one}" for one in missed(report)]
    goals += [f"Not decided: {one}" for one in undecided(report)]
    return "\n".join([*lines, "", *goals]).strip()


def _headings(case: Mapping[str, Any]) -> tuple[str, ...]:
    heads: list[str] = []
    for name, figure in case["figures"].items():
        heads.append(f"{name} ({figure['unit']})" if figure["unit"] else name)
        heads += ["worst"] * (case["turns"] > 1) + ["cold"] * (case["warm_ups"] > 0)
        if figure["ratios"]:
            heads += ["times the best peer", "at worst"]
    return tuple(heads)


def _rows(part: str, cases: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    yield (part, *_headings(cases[0]))
    for case in cases:
        sides = {side for figure in case["figures"].values() for side in figure["sides"]}
        known = [*case["ours"], *sorted((sides | set(case["unavailable"])) - set(case["ours"]))]
        for side in known:
            name = case["name"] if known == ["ours"] else f"{case['name']}: {side}"
            if side in case["unavailable"]:
                yield (name, f"unavailable: {case['unavailable'][side]}")
            elif side in sides:
                yield (name, *_cells(case, side))


def _cells(case: Mapping[str, Any], side: str) -> Iterator[str]:
    for figure in case["figures"].values():
        numbers = figure["sides"].get(side)
        yield f"{number(numbers['median'])}{' ~' if numbers['is_noise'] else ''}" if numbers else ""
        if case["turns"] > 1:
            yield number(numbers["worst"]) if numbers else ""
        if case["warm_ups"]:
            yield number(numbers["cold"]) if numbers and numbers["cold"] is not None else ""
        if figure["ratios"]:
            ratio = beside_best(figure, side)
            yield f"{ratio['median']:.2f}" if ratio else ""
            yield f"{ratio['worst']:.2f}" if ratio else ""


def beside_best(figure: Mapping[str, Any], side: str) -> Mapping[str, Any] | None:
    """The ratio of one of ours to the peer that comes off best; None for a peer."""
    ratios = figure["ratios"].get(side)
    return min(ratios.values(), key=lambda one: one["median"]) if ratios else None


def number(value: float) -> str:
    """A number with at least three digits that count."""
    if value != value or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def aligned(rows: Iterator[Sequence[str]]) -> str:
    """Rows as a table. A row of two cells is a name and a remark, of any length."""
    found = list(rows)
    cells = [row for row in found if len(row) != 2] if len(found[0]) != 2 else found
    widths = [max(map(len, column)) for column in zip_longest(*cells, fillvalue="")]
    first = max(len(row[0]) for row in found)
    lines = []
    for name, *others in found:
        if len(others) == len(widths) - 1:
            others = [one.rjust(width) for one, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(first), *others]).rstrip())
    return "\n".join(lines)

"""Fills the tables of figures in README.md and docs/*.md from docs/benchmarks.json: ``make docs``.

That file is the kept report of ``python jobs/benchmark.py all``. A table stands between two marks::

    <!-- figures: PART / CASES / FIGURES / SIDES -->
    <!-- end of figures -->

CASES, FIGURES and SIDES are names or patterns, ``;`` between them; one that is left out is ``*``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
REPORT = Path(__file__).with_name("benchmarks.json")
LONGEST_REASON = 100
LEAST_PAIRS = 6
"""Of fewer turns no interval holds the true median with 95 % certainty."""
BLOCK = re.compile(
    r"^(<!-- figures: ([^\n]+) -->\n)(?:.*?\n)??(<!-- end of figures -->)$",
    re.DOTALL | re.MULTILINE,
)


class _Chosen(NamedTuple):
    """What a mark asks for: the cases of a part, and names of their figures and sides."""

    part: str
    cases: list[Mapping[str, Any]]
    figures: list[str]
    sides: list[str]


def pages() -> list[Path]:
    """The pages that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(text: str, report: Mapping[str, Any]) -> str:
    """A page with its tables as a report has them.

    Raises:
        ValueError: The report has nothing of what a mark names.
    """
    return BLOCK.sub(lambda found: f"{found[1]}{_table(found[2], report)}\n{found[3]}", text)


def number(value: float) -> str:
    """Three digits that count, and commas between thousands: 0.27, 1.42, 5,040,000."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"


def _table(mark: str, report: Mapping[str, Any]) -> str:
    try:
        chosen = _chosen(mark, report)
    except ValueError:
        part = report["parts"].get(mark.split(" / ")[0], {})
        if "unavailable" not in part:
            raise
        command, end = part.get("from", report)["command"], part["unavailable"]
        return f"Not measured by `{command}`: {shorten(end, LONGEST_REASON)}."
    lines = [("", *_heads(chosen)), *_rows(chosen)]
    lines.insert(1, ("---",) * len(lines[0]))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_origin(chosen, report)}"


def _chosen(mark: str, report: Mapping[str, Any]) -> _Chosen:
    part, *patterns = mark.split(" / ")
    of_cases, of_figures, of_sides = [*patterns, "*", "*", "*"][:3]
    known = {one["name"]: one for one in report["parts"].get(part, {"cases": []})["cases"]}
    cases = [known[name] for name in _matching(known, of_cases, mark)]
    names = dict.fromkeys(name for case in cases for name in case["figures"])
    figures = _matching(names, of_figures, mark)
    cases = [case for case in cases if case["figures"].keys() & figures]
    sides = _matching(dict.fromkeys(one for case in cases for one in _sides(case)), of_sides, mark)
    return _Chosen(part, cases, figures, sides)


def _matching(names: Iterable[str], patterns: str, mark: str) -> list[str]:
    """The names that fit a pattern, in the order of the patterns.

    Raises:
        ValueError: A pattern of the mark fits none of them.
    """
    found: dict[str, None] = {}
    for pattern in patterns.split("; "):
        fitting = [name for name in names if fnmatchcase(name, pattern)]
        if not fitting:
            there = "; ".join(names) or "nothing of that part"
            raise ValueError(
                f"{REPORT.name} has nothing for {pattern!r} of the mark {mark!r}; it has: {there}."
            )
        found |= dict.fromkeys(fitting)
    return list(found)


def _sides(case: Mapping[str, Any]) -> list[str]:
    """Ours, then the peers and limits."""
    measured = [side for figure in case["figures"].values() for side in figure["sides"]]
    return list(dict.fromkeys([*case["ours"], *measured, *case["unavailable"]]))


def _figures_of(chosen: _Chosen, name: str) -> list[Mapping[str, Any]]:
    return [case["figures"][name] for case in chosen.cases if name in case["figures"]]


def _has_turns(chosen: _Chosen) -> bool:
    return any(case["turns"] > 1 for case in chosen.cases)


def _has_cold(chosen: _Chosen) -> bool:
    return any(case["warm_ups"] for case in chosen.cases)


def _heads(chosen: _Chosen) -> Iterator[str]:
    for name in chosen.figures:
        figures = _figures_of(chosen, name)
        units = " or ".join(sorted({figure["unit"] for figure in figures}))
        yield f"{name} ({units})" if units else name
        if _has_turns(chosen):
            yield "worst"
        if _has_cold(chosen):
            yield "cold"
        if any(figure["ratios"] for figure in figures):
            yield "times as good as"


def _rows(chosen: _Chosen) -> Iterator[Sequence[str]]:
    for case in chosen.cases:
        for side in (one for one in chosen.sides if one in _sides(case)):
            # A side that has no peer is called "ours", and says less than its case.
            names = [case["name"]] * (len(chosen.cases) > 1 or side == "ours")
            label = ": ".join([*names, *[side] * (side != "ours")])
            yield (f"**{label}**" if side in case["ours"] else label, *_cells(chosen, case, side))


def _cells(chosen: _Chosen, case: Mapping[str, Any], side: str) -> Iterator[str]:
    reason = shorten(case["unavailable"].get(side, "not measured"), LONGEST_REASON)
    nothing = f"no figure: {reason}".replace("|", "\\|")
    for name in chosen.figures:
        figure = case["figures"].get(name, {"sides": {}, "ratios": {}})
        found = figure["sides"].get(side)
        yield number(found["median"]) + " (noise)" * found["is_noise"] if found else nothing
        nothing = ""
        if _has_turns(chosen):
            yield number(found["worst"]) if found else ""
        if _has_cold(chosen):
            yield number(found["cold"]) if found and found["cold"] is not None else ""
        if any(one["ratios"] for one in _figures_of(chosen, name)):
            ratios = figure["ratios"].get(side, {})
            beside = (peer for peer in ratios if peer in chosen.sides)
            yield "<br>".join(_ratio(peer, ratios[peer]) for peer in beside)


def _ratio(peer: str, ratio: Mapping[str, Any]) -> str:
    """The median, the interval that holds it, and the worst turn if that is outside."""
    low, high = ratio["interval"]
    few = f" in {ratio['pairs']} turns" if ratio["pairs"] < LEAST_PAIRS else ""
    told = f" ({number(low)} to {number(high)}{few})" if ratio["pairs"] > 1 else ""
    worst = f", worst {number(ratio['worst'])}" if number(ratio["worst"]) != number(low) else ""
    return f"{number(ratio['median'])}{told}{worst}: {peer}"


def _origin(chosen: _Chosen, report: Mapping[str, Any]) -> str:
    """The line below a table: when, by which command and how often it was measured, and goals."""
    fewest, *_, most = sorted([case["turns"] for case in chosen.cases] * 2)
    turns = f"{fewest} to {most}" if fewest < most else f"{most}"
    turns += f" {'turn' if most == 1 else 'turns'}"
    turns += " after a warm-up" * _has_cold(chosen)
    case = f", {chosen.cases[0]['name']}" if len(chosen.cases) == 1 else ""
    part = report["parts"][chosen.part]
    end, origin = part.get("unavailable", ""), part.get("from", report)
    not_done = f" The part was not done: {shorten(end, LONGEST_REASON)}." if end else ""
    return (
        f"Measured {origin['date']} by `{origin['command']}` (part {chosen.part}{case}), {turns}, "
        f"on {origin['machine']['cores']} cores.{not_done}{''.join(_goals(chosen))}"
    )


def _goals(chosen: _Chosen) -> Iterator[str]:
    """Each goal that was missed, and how many the turns do not decide on."""
    told: dict[str, list[str]] = {"missed": [], "undecided": []}
    for case in chosen.cases:
        shown = product(chosen.figures, chosen.sides)
        begins = tuple(f"{case['name']}: {figure} of {side} " for figure, side in shown)
        for kind, sentences in told.items():
            sentences += [one for one in case[kind] if one.startswith(begins)]
    yield from (f" A goal was missed: {one}." for one in told["missed"])
    if count := len(told["undecided"]):
        goals = "one goal" if count == 1 else f"{count} goals"
        yield f" The turns do not decide on {goals}: they are too few, or differ too much."


def main() -> None:
    """Writes the pages whose tables have changed."""
    report = json.loads(REPORT.read_text())
    for page in pages():
        text = page.read_text()
        if (new := filled(text, report)) != text:
            page.write_text(new)


if __name__ == "__main__":
    main()

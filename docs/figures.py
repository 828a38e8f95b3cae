"""Puts the figures of the kept report into the pages: ``make docs``.

``docs/figures.toml`` has the lines of the pages that hold figures, each with a place for every
number and where the report has it. A line is found by its other words, so a page is written as any
other, and only its numbers come from here.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "benchmarks.json"
LINES = ROOT / "docs" / "figures.toml"
_PLACE = re.compile(r"\{(:[^}]*)\}")
_NUMBER = r"[\d.,]*\d"


def filled(page: str, text: str, lines: list[Mapping[str, Any]], report: Mapping[str, Any]) -> str:
    """A page with the report's figures.

    Args:
        page: Its path in the repository.
        text: The page as it is.
        lines: Those of ``figures.toml``.
        report: The kept report.

    Raises:
        ValueError: A line is not there once, or the report has not a figure of it.
    """
    for line in lines:
        if line["page"] != page:
            continue
        pieces = _PLACE.split(line["text"])
        words, formats = pieces[::2], pieces[1::2]
        found = re.findall(_NUMBER.join(map(re.escape, words)), text)
        if len(found) != 1:
            raise ValueError(f"{page} should have this line once: {line['text']}")
        numbers = [figure(report, path) for path in line["figures"]]
        told = "".join(
            f"{word}{format(number, shape[1:])}"
            for word, number, shape in zip(words[:-1], numbers, formats, strict=True)
        )
        text = text.replace(found[0], told + words[-1])
    return text


def figure(report: Mapping[str, Any], path: str) -> float:
    """One number of the report.

    Args:
        report: The kept report.
        path: Part, case, figure, side and key, as ``launch: later calls: call to result:
            HorovodRunner: median``. The key is one of a side's, or ``best_peer`` or
            ``worst_of_best_peer``: times as good as the peer that comes off best.

    Raises:
        ValueError: It has no such number.
    """
    part, case, name, side, key = path.split(": ")
    try:
        (found,) = [one for one in report["parts"][part]["cases"] if one["name"] == case]
        numbers = found["figures"][name]
        if key.endswith("best_peer"):
            ratios = numbers["ratios"][side].values()
            best = min(ratios, key=lambda one: one["median"])
            return float(best["median" if key == "best_peer" else "worst"])
        return float(numbers["sides"][side][key])
    except (KeyError, ValueError) as error:
        raise ValueError(f"the report has no figure {path!r}") from error


def pages() -> Iterator[tuple[Path, str]]:
    """Each page that has figures, and its text as it should be."""
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    lines = tomllib.loads(LINES.read_text(encoding="utf-8"))["line"]
    for page in sorted({line["page"] for line in lines}):
        path = ROOT / page
        yield path, filled(page, path.read_text(encoding="utf-8"), lines, report)


def main() -> None:
    """Writes the pages."""
    for path, text in pages():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

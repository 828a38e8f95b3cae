"""Turns, medians, ratios and tables, the same for all benchmarks."""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import zip_longest
from typing import Any


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def add_launchers(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Adds the option that chooses which launchers to measure."""
    all_names = list(names)
    parser.add_argument(
        "--launchers",
        nargs="+",
        choices=all_names,
        default=all_names,
        metavar="NAME",
        help=f"which of {', '.join(all_names)} (default: all)",
    )


def versions() -> dict[str, str]:
    """The versions of Python, of this package and of the libraries beside it."""
    found = {"python": platform.python_version()}
    for package in ("pyspark", "torch", "horovod", "pyarrow", "petastorm", "mlflow"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def in_turns(
    actions: Mapping[str, Callable[[], Any]], turns: int, *, warm_up: bool
) -> dict[str, Any]:
    """Does each action once in each turn, so that all share the machine's good and bad moments.

    Each is first in some turn, as what a slow one leaves behind could hit the one after it.

    Args:
        actions: By name.
        turns: How many count.
        warm_up: Whether there is a turn before them that does not.

    Returns:
        By name the values of all turns, or the reason why there are none.
    """
    found: dict[str, Any] = {name: [] for name in actions}
    names = list(actions)
    for turn in range(0 if warm_up else 1, turns + 1):
        print(f"  turn {turn} of {turns}" if turn else "  warm-up", flush=True)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if isinstance(found[name], str):
                continue
            try:
                value = actions[name]()
            except Exception as error:
                found[name] = reason_of(error)
                continue
            if turn > 0:
                found[name].append(value)
    return found


def with_and_without(count: int) -> Iterator[bool]:
    """Yields True and False, ``count`` times each, as True False False True.

    A machine that gets slower or faster with time favours neither.
    """
    for number in range(2 * count):
        yield number % 4 in (0, 3)


def reason_of(error: BaseException) -> str:
    """The first line of what went wrong."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def summary(found: list[float] | str) -> dict[str, Any]:
    """Seconds with their median and extremes, or the reason why there are none."""
    if isinstance(found, str):
        return {"unavailable": found}
    return {
        "seconds": found,
        "median": statistics.median(found),
        "min": min(found),
        "max": max(found),
    }


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median ratio of measurements made beside each other.

    The machine may be busier at one time than at another, so the ratio of the medians says less.
    """
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table. A row of two cells is a name and a remark, of any length."""
    cells = [row for row in rows if len(row) != 2]
    widths = [max(map(len, column)) for column in zip_longest(*cells, fillvalue="")]
    first = max(len(row[0]) for row in rows)
    lines = []
    for name, *others in rows:
        if len(others) > 1:
            others = [one.rjust(width) for one, width in zip(others, widths[1:], strict=False)]
        lines.append("  ".join([name.ljust(first), *others]).rstrip())
    return "\n".join(lines)


def result_rows(
    results: Iterable[Mapping[str, Any]], name: str, cells: Callable[[Any], Sequence[str]]
) -> list[tuple[str, ...]]:
    """Results as rows of a table.

    Args:
        results: Each has its figures, or ``skipped``, the reason why there are none.
        name: A format of their entries, such as ``"{table}: {loader}"``.
        cells: Makes the other cells of one that has figures.
    """
    return [
        (
            name.format(**one),
            *((f"unavailable: {one['skipped']}",) if "skipped" in one else cells(one)),
        )
        for one in results
    ]


def listed(figures: Mapping[str, str]) -> str:
    """Figures below one another, each with its name."""
    names, values = (max(map(len, one)) for one in (figures.keys(), figures.values()))
    return "\n".join(f"  {name:<{names}}  {value:>{values}}" for name, value in figures.items())

"""How the tests of a suite ended, and where two launchers differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

BEGUN = "begun"
UNFINISHED = "unfinished"
LEFT_OUT = "left-out"
"""A file of the names of tests that another start leaves out."""


def read(folder: Path, num_proc: int) -> dict[str, str]:
    """How each test ended, over all ranks.

    Args:
        folder: Holds what ``ranks.run`` wrote.
        num_proc: How many ranks there were.

    Returns:
        For each test the one outcome of all ranks; ``failed`` if it failed in any, and
        ``unfinished`` if it did not end in all.
    """
    ranks = [_ends(_lines(folder, rank)) for rank in range(num_proc)]
    names = dict.fromkeys(name for one in ranks for name in one)
    return {name: _of([one.get(name, BEGUN) for one in ranks]) for name in names}


def _ends(lines: list[tuple[str, str]]) -> dict[str, str]:
    """The last line of each test; but a part of it that failed counts, whatever comes later."""
    last = {name: how for how, name in lines}
    return last | {name: how for how, name in lines if how == "failed"}


def _lines(folder: Path, rank: int) -> list[tuple[str, str]]:
    path = folder / f"rank-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(how, name) for how, _, name in (line.partition(" ") for line in lines)]


def _of(outcomes: list[str]) -> str:
    if "failed" in outcomes:
        return "failed"
    if BEGUN in outcomes:
        return UNFINISHED
    return "passed" if "passed" in outcomes else "skipped"


def leave_out(folder: Path, num_proc: int) -> int:
    """Writes what another start leaves out: what has ended, and what began twice and did not.

    Returns:
        How often a test has begun so far, over all ranks and starts.
    """
    num_begun = 0
    left_out = {name for name, how in read(folder, num_proc).items() if how != UNFINISHED}
    for rank in range(num_proc):
        begun = Counter(name for how, name in _lines(folder, rank) if how == BEGUN)
        left_out.update(name for name, count in begun.items() if count > 1)
        num_begun += begun.total()
    (folder / LEFT_OUT).write_text("".join(f"{name}\n" for name in sorted(left_out)))
    return num_begun


def summary(outcomes: Mapping[str, str]) -> str:
    """How many ended how, in words."""
    counts = Counter(outcomes.values())
    return ", ".join(f"{count} {how}" for how, count in sorted(counts.items())) or "none run"


def worse(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Each test that passes under its own launcher and not here, and how it ended here."""
    return {
        name: ours.get(name, "not run")
        for name, how in theirs.items()
        if how == "passed" and ours.get(name) != "passed"
    }

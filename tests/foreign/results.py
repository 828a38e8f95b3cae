"""How the tests of a suite ended, and where two launchers differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

UNFINISHED = "unfinished"


def read(folder: Path, num_proc: int) -> dict[str, str]:
    """How each test ended, over all ranks.

    Args:
        folder: Holds what ``ranks.run_tests`` wrote.
        num_proc: How many ranks there were.

    Returns:
        For each test the one outcome of all ranks; ``failed`` if it failed in any, and
        ``unfinished`` if it did not end in all.
    """
    ranks = []
    for rank in range(num_proc):
        path = folder / f"rank-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        ranks.append({name: how for how, _, name in (line.partition(" ") for line in lines)})
    names = dict.fromkeys(name for one in ranks for name in one)
    return {name: _of([one.get(name) for one in ranks]) for name in names}


def _of(outcomes: list[str | None]) -> str:
    if "failed" in outcomes:
        return "failed"
    if None in outcomes:
        return UNFINISHED
    return "passed" if "passed" in outcomes else "skipped"


def summary(outcomes: dict[str, str]) -> str:
    """How many ended how, in words."""
    counts = Counter(outcomes.values())
    return ", ".join(f"{count} {how}" for how, count in sorted(counts.items())) or "none run"


def worse(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """A line for each test that passes under its own launcher, and not as a rank of ours."""
    return [
        f"{name}: passes under its own launcher, {ours.get(name, 'not run')} here"
        for name, how in theirs.items()
        if how == "passed" and ours.get(name) != "passed"
    ]

"""Which mutants are tried: a seeded sample, what was changed first, without the equivalent ones."""

from __future__ import annotations

import random
import re
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

from mutants.operators import Mutant, mutants
from mutants.tree import ROOT, files

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def all_mutants(package: str) -> list[Mutant]:
    """Every mutant of every file of the package."""
    return [
        mutant
        for file in files(package)
        if file.endswith(".py")
        for mutant in mutants(file, (ROOT / file).read_bytes())
    ]


def drawn(
    pool: Sequence[Mutant], *, count: int, seed: int, changed: dict[str, set[int]]
) -> list[Mutant]:
    """A random sample: of changed lines first, then of files with changes, then of the others."""
    shuffled = random.Random(seed).sample(pool, len(pool))

    def distance(mutant: Mutant) -> int:
        lines = changed.get(mutant.file)
        if lines is None:
            return 2
        return 0 if lines & set(range(mutant.line, mutant.last_line + 1)) else 1

    return sorted(shuffled, key=distance)[:count]


def changed_lines(base: str, package: str) -> dict[str, set[int]]:
    """By file, the lines that are new or different since ``base``, in the working tree.

    Raises:
        ValueError: There is no such revision.
    """
    found = _git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    if found.returncode != 0:
        raise ValueError(
            f"BASE={base} is no revision here; name one, or none (BASE=) for the whole package."
        )
    lines: dict[str, set[int]] = {}
    file = ""
    for line in _git("diff", "--unified=0", "--no-color", base, "--", package).stdout.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(file, set()).update(range(first, first + count))
    for file in _git("ls-files", "--others", "--exclude-standard", package).stdout.splitlines():
        lines[file] = set(range(1, len((ROOT / file).read_bytes().splitlines()) + 1))
    return lines


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def change(mutant: Mutant, source: bytes) -> tuple[str, str]:
    """The first line that differs, without indentation: as it is, and as the mutant has it."""
    before, after = source.splitlines(), mutant.apply(source).splitlines()
    at = mutant.line - 1
    while before[at] == after[at]:
        at += 1
    return before[at].decode().strip(), after[at].decode().strip()


def equivalent() -> dict[tuple[str, str, str], str]:
    """Why a mutant changes nothing that matters, by file, line and changed line."""
    listed = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(one["file"], one["line"], one["mutant"]): one["reason"] for one in listed}

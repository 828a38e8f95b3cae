"""The findings, for a person and as JSON."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from sparkdl_runner.doctor.findings.finding import (
    DRIVER,
    NOT_CHECKED,
    OK,
    PROBLEM,
    WARNING,
    Finding,
    worst,
)

# Problems come last, where a person looks first.
_ORDER = (OK, NOT_CHECKED, WARNING, PROBLEM)
_LABELS = {OK: "ok", NOT_CHECKED: "--", WARNING: "WARNING", PROBLEM: "PROBLEM"}
_COLOURS = {OK: "32", NOT_CHECKED: "2", WARNING: "33", PROBLEM: "31"}
_NAME_WIDTH = 18


@dataclass(frozen=True, kw_only=True)
class Report:
    """All findings of one examination.

    Attributes:
        findings: In the order of the checks.
        num_proc: The number of ranks that were asked about.
        seconds: How long the examination took.
    """

    findings: Sequence[Finding]
    num_proc: int
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 if a run can work, 1 if something is broken."""
        return int(worst(self.findings) == PROBLEM)

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints: see docs/doctor.md."""
        return {
            "status": worst(self.findings),
            "num_proc": self.num_proc,
            "seconds": round(self.seconds, 1),
            "findings": [finding.to_json() for finding in self.findings],
        }

    def print_to(self, stream: TextIO) -> None:
        """Writes the report for a person: short lines, the problems and their remedies last."""
        is_terminal = stream.isatty()
        width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        for status in _ORDER:
            chosen = self._with(status)
            if chosen and status in (WARNING, PROBLEM):
                print(file=stream)
            for finding in chosen:
                _print_finding(finding, stream, width=width, colour=is_terminal)
        print("\n" + self._summary(), file=stream)

    def _with(self, status: str) -> list[Finding]:
        chosen = [finding for finding in self.findings if finding.status == status]
        return _alike(chosen) if status == OK else chosen

    def _summary(self) -> str:
        count = {status: len(self._with(status)) for status in _ORDER}
        parts = [f"{count[OK]} {'check is' if count[OK] == 1 else 'checks are'} fine"]
        for status, word in ((WARNING, "warning"), (PROBLEM, "problem")):
            if count[status]:
                parts.append(f"{count[status]} {word}{'s' if count[status] > 1 else ''}")
        if count[NOT_CHECKED]:
            parts.append(f"{count[NOT_CHECKED]} not checked")
        verdict = (
            "mend the problems before a run"
            if count[PROBLEM]
            else f"{self.num_proc} ranks can run here"
        )
        return f"{', '.join(parts)}: {verdict} ({self.seconds:.1f} s)."


def _alike(findings: Sequence[Finding]) -> list[Finding]:
    """Merges findings that are fine on many hosts into one line."""
    chosen: list[Finding] = []
    for finding in findings:
        for at, known in enumerate(chosen):
            # A check may look at several things of one host, such as its disks.
            if known.check == finding.check and not set(known.where) & set(finding.where):
                chosen[at] = replace(known, where=known.where + finding.where)
                break
        else:
            chosen.append(finding)
    return chosen


def _print_finding(finding: Finding, stream: TextIO, *, width: int, colour: bool) -> None:
    label = f"{_LABELS[finding.status]:8}"
    if colour:
        label = f"\033[{_COLOURS[finding.status]}m{label}\033[0m"
    text = finding.found
    if finding.where != (DRIVER,):
        text += f" [{_places(finding.where)}]"
    indent = " " * (8 + _NAME_WIDTH)
    lines = _wrapped(text, width, indent)
    if finding.expected:
        lines += _wrapped(f"expected: {finding.expected}", width, indent)
    if finding.advice:
        lines += _wrapped(f"-> {finding.advice}", width, indent)
    lines[0] = lines[0].removeprefix(indent)
    print(f"{label}{finding.check:<{_NAME_WIDTH - 1}} " + "\n".join(lines), file=stream)


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    # A command or a path that is torn in two cannot be copied.
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [indent]


def _places(where: Sequence[str]) -> str:
    if len(where) == 1:
        return where[0]
    if where[0] == DRIVER:
        return f"{DRIVER} and {len(where) - 1} executor{'s' if len(where) > 2 else ''}"
    if len(where) == 2:
        return " and ".join(where)
    return f"{where[0]} and {len(where) - 1} more"

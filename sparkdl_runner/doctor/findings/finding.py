"""A finding: one thing that was looked at, on one or several hosts, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
NOT_CHECKED = "not checked"
# From the best to the worst.
STATUSES = (OK, NOT_CHECKED, WARNING, PROBLEM)

DRIVER = "driver"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. ``Checks`` fills in ``check`` and ``where``.

    Attributes:
        check: The check's name, such as ``spark.slots``. Names do not change between versions.
        status: ``"ok"``, ``"warning"`` (it works, and may not always), ``"problem"`` (it does not
            work) or ``"not checked"``.
        found: What is there, in a sentence or less.
        expected: What should be there; empty where all is well.
        advice: What to do; empty where there is nothing to do.
        where: ``"driver"``, and executors by host and address.
    """

    status: str
    found: str
    expected: str = ""
    advice: str = ""
    check: str = ""
    where: tuple[str, ...] = (DRIVER,)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status is {self.status!r}; it must be one of {STATUSES}.")

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return {**asdict(self), "where": list(self.where)}


def ok(found: str) -> Finding:
    """All is well."""
    return Finding(status=OK, found=found)


def warning(found: str, *, advice: str, expected: str = "") -> Finding:
    """A finding: it works, but perhaps not always or not well."""
    return Finding(status=WARNING, found=found, expected=expected, advice=advice)


def problem(found: str, *, advice: str, expected: str = "") -> Finding:
    """A finding: it does not work."""
    return Finding(status=PROBLEM, found=found, expected=expected, advice=advice)


def not_checked(why: str, *, advice: str = "") -> Finding:
    """A finding: it could not be checked, or was not asked for."""
    return Finding(status=NOT_CHECKED, found=why, advice=advice)


def refused(error: Exception | str) -> Finding:
    """Makes a problem of a launcher's own error.

    The errors of this package say what was found, then what to do: after the last full stop, or in
    a single sentence after the colon.
    """
    *sentences, advice = re.split(r"(?<=\.) (?=[A-Z])", str(error))
    if not sentences:
        text, _, advice = advice.partition(": ")
        sentences, advice = [f"{text.rstrip('.')}."], advice[:1].upper() + advice[1:]
    return problem(" ".join(sentences), advice=advice)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Makes one finding of those that say the same of several hosts, in the order of the first."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        seen = places.setdefault(replace(finding, where=()), [])
        seen += [where for where in finding.where if where not in seen]
    return [replace(finding, where=tuple(where)) for finding, where in places.items()]


def worst(findings: Iterable[Finding]) -> str:
    """The worst status of all: ``"ok"``, ``"warning"`` or ``"problem"``."""
    most = max((STATUSES.index(finding.status) for finding in findings), default=0)
    return OK if STATUSES[most] == NOT_CHECKED else STATUSES[most]

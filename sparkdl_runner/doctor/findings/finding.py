"""A finding: one thing that was looked at, on one or several hosts, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
    """What one check came to.

    Attributes:
        check: The check's name, such as ``spark.slots``. Names do not change between versions.
        status: ``"ok"``, ``"warning"`` (it works, and may not always), ``"problem"`` (it does not
            work) or ``"not checked"``.
        found: What is there, in a sentence or less.
        expected: What should be there; empty where all is well.
        advice: What to do; empty where there is nothing to do.
        where: ``"driver"``, and executors by host and address.
    """

    check: str
    status: str
    found: str
    expected: str = ""
    advice: str = ""
    where: tuple[str, ...] = (DRIVER,)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status is {self.status!r}; it must be one of {STATUSES}.")

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return {
            "check": self.check,
            "status": self.status,
            "found": self.found,
            "expected": self.expected,
            "advice": self.advice,
            "where": list(self.where),
        }


def ok(check: str, found: str, where: str = DRIVER) -> Finding:
    """All is well."""
    return Finding(check=check, status=OK, found=found, where=(where,))


def warning(check: str, found: str, *, expected: str, advice: str, where: str = DRIVER) -> Finding:
    """It works, and may not always, or not well."""
    return Finding(
        check=check, status=WARNING, found=found, expected=expected, advice=advice, where=(where,)
    )


def problem(check: str, found: str, *, expected: str, advice: str, where: str = DRIVER) -> Finding:
    """It does not work."""
    return Finding(
        check=check, status=PROBLEM, found=found, expected=expected, advice=advice, where=(where,)
    )


def not_checked(check: str, why: str, where: str = DRIVER, *, advice: str = "") -> Finding:
    """It could not be looked at, or nobody asked."""
    return Finding(check=check, status=NOT_CHECKED, found=why, advice=advice, where=(where,))


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


def guarded(check: str, look: Callable[[], Finding | Iterable[Finding] | None]) -> list[Finding]:
    """What a check finds, as a list; one that breaks is told as that."""
    found: list[Finding] = []
    try:
        answer = look()
        if isinstance(answer, Finding):
            found.append(answer)
        else:
            found.extend(answer or ())
    except Exception as error:
        found.append(
            not_checked(
                check,
                f"the check itself failed: {type(error).__name__}: {error}",
                advice="This is an error of sparkdl-runner doctor; please report it.",
            )
        )
    return found

"""The checks, by what they look at. To add one, decorate a function in a file of this folder.

@HOST("open_files", expected="1024 or more")
def open_files(host: Place) -> Finding: ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from sparkdl_runner.doctor.findings.finding import (
    DRIVER,
    PROBLEM,
    WARNING,
    Finding,
    not_checked,
    refused,
)
from sparkdl_runner.doctor.question import Question
from sparkdl_runner.errors import LaunchError

Seen = TypeVar("Seen")
Found = Finding | Iterable[Finding] | None
Check = Callable[..., list[Finding]]


class Checks(Generic[Seen]):
    """All checks of one kind, in the order of the report.

    Attributes:
        names: Theirs. docs/doctor.md has a row for each.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._all: list[Check] = []

    def __call__(
        self, name: str, *, expected: str = ""
    ) -> Callable[[Callable[[Seen], Found]], Check]:
        """Adds a function as a check.

        Args:
            name: What its findings are called.
            expected: What its warnings and problems tell as expected, where they say nothing else.
        """
        self.names.add(name)

        def add(look: Callable[[Seen], Found]) -> Check:
            @functools.wraps(look)
            def check(seen: Seen, where: str = DRIVER) -> list[Finding]:
                return [
                    replace(finding, where=(where,), expected=finding.expected or expected)
                    if finding.status in (WARNING, PROBLEM)
                    else replace(finding, where=(where,))
                    for finding in guarded(name, lambda: look(seen))
                ]

            self._all.append(check)
            return check

        return add

    def run(self, seen: Seen, where: str = DRIVER) -> list[Finding]:
        """Runs all of the checks."""
        return [finding for check in self._all for finding in check(seen, where)]


def guarded(name: str, look: Callable[[], Found]) -> list[Finding]:
    """Runs one check, and returns its findings.

    A launcher's error is a problem; any other error is reported as a failure of the check.
    """
    findings: list[Finding] = []
    try:
        answer = look()
        findings.extend([answer] if isinstance(answer, Finding) else answer or ())
    except LaunchError as error:
        findings.append(refused(error))
    except Exception as error:
        findings.append(
            not_checked(
                f"the check itself failed: {type(error).__name__}: {error}",
                advice="This is an error of sparkdl-runner doctor; please report it.",
            )
        )
    return [replace(finding, check=finding.check or name) for finding in findings]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The driver, or an executor, and what it is wanted for.

    Attributes:
        facts: The facts of ``scripts/host.py``; empty if it did not run.
        question: What a person wants to run.
        on_cluster: Whether executors are other processes than the driver's.
        spark_version: The installed pyspark's.
        answer: An executor's own words (see ``stage``); empty for the driver.
        driver: The driver's facts.
        spark_gives_gpus: Whether the session asks for executors with GPUs.
        some_have_gpus: Whether any executor's host has some.
    """

    facts: dict[str, Any]
    question: Question = field(default_factory=Question)
    on_cluster: bool = False
    spark_version: str = ""
    answer: dict[str, Any] = field(default_factory=dict)
    driver: dict[str, Any] = field(default_factory=dict)
    spark_gives_gpus: bool = False
    some_have_gpus: bool = False

    @property
    def is_driver(self) -> bool:
        """Whether it is the driver."""
        return not self.answer

    @property
    def was_seen(self) -> bool:
        """Whether its host and its Python were looked at."""
        return bool(self.facts) and "error" not in self.facts

    @property
    def name(self) -> str:
        """How the report names it."""
        if self.is_driver:
            return DRIVER
        if not self.on_cluster:
            return "executor"  # There is one, in the driver's JVM.
        return f"executor {self.answer['place']} ({self.answer['host']})"

    @property
    def needs_gpus(self) -> bool:
        """Whether ranks there are to train on GPUs."""
        if self.is_driver:
            return self.question.gpus and not self.on_cluster
        return self.question.gpus or self.spark_gives_gpus

    @property
    def gpus_given(self) -> Sequence[str]:
        """The addresses of the GPUs that Spark has given to its tasks."""
        return self.answer.get("gpus_given", ()) if self.spark_gives_gpus else ()

    @property
    def torch(self) -> dict[str, Any]:
        """torch's facts about itself; empty if not loaded, ``{"error": …}`` if loading failed."""
        return self.facts["native"].get("torch") or {}

    @property
    def has_gpus(self) -> bool:
        """Whether it has GPUs, by any account."""
        return bool(self.facts["gpus"]["gpus"] or self.torch.get("gpus"))


PYTHON: Checks[Place] = Checks()
"""Checks of the packages in a Python, the driver's or an executor's."""
HOST: Checks[Place] = Checks()
"""Checks of each host."""
EXECUTOR: Checks[Place] = Checks()
"""Checks of an executor's network, and of its differences from the driver."""
SESSION: Checks[dict[str, Any]] = Checks()
"""Checks of a session that has started (see ``doctor.session``)."""
START: Checks[dict[str, Any]] = Checks()
"""Checks of the start of a session."""

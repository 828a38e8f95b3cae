"""A finding, and versions as numbers."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl_runner.doctor.findings import versions
from sparkdl_runner.doctor.findings.checks import Checks
from sparkdl_runner.doctor.findings.finding import (
    NOT_CHECKED,
    OK,
    PROBLEM,
    Finding,
    merged,
    not_checked,
    ok,
    problem,
    refused,
    worst,
)
from sparkdl_runner.errors import LaunchError


def test_the_same_of_several_hosts_is_one_finding():
    fine = Finding(status=OK, found="fine", check="clock", where=("a",))
    found = merged([fine, replace(fine, check="disk"), replace(fine, where=("b",))])
    assert [(finding.check, finding.where) for finding in found] == [
        ("clock", ("a", "b")),
        ("disk", ("a",)),
    ]


def test_what_was_not_checked_is_no_fault():
    assert worst([ok(""), not_checked("")]) == OK
    assert worst([]) == OK
    assert worst([not_checked(""), problem("", advice="")]) == PROBLEM


@pytest.mark.parametrize(
    ("error", "found", "advice"),
    [
        ("It is on (a.b). Why? So. Set it to no.", "It is on (a.b). Why? So.", "Set it to no."),
        ("It is on (at spark://a:1): set it to no.", "It is on (at spark://a:1).", "Set it to no."),
    ],
)
def test_a_launchers_error_says_what_was_found_and_then_what_to_do(error, found, advice):
    finding = refused(LaunchError(error))
    assert (finding.status, finding.found, finding.advice) == (PROBLEM, found, advice)


KIND: Checks[str] = Checks()


@KIND("first", expected="nothing")
def first(seen: str) -> Iterator[Finding]:
    """Finds two things, and then fails."""
    yield ok(seen)
    yield problem("bad", advice="Do.")
    raise KeyError("gone")


@KIND("second", expected="nothing")
def second(seen: str) -> None:
    """Does what a launcher does."""
    raise LaunchError("It is on: set it to no.")


def test_a_check_that_fails_itself_is_a_finding_and_keeps_what_it_found_before():
    found = KIND.run("fine", "there")
    assert {finding.where for finding in found} == {("there",)}
    assert [(finding.check, finding.status, finding.expected) for finding in found] == [
        ("first", OK, ""),
        ("first", PROBLEM, "nothing"),
        ("first", NOT_CHECKED, ""),
        ("second", PROBLEM, "nothing"),
    ]
    assert "KeyError: 'gone'" in found[2].found
    assert "report" in found[2].advice


def test_an_unknown_status_is_refused():
    with pytest.raises(ValueError, match="status is 'bad'"):
        Finding(status="bad", found="")


def test_the_supported_versions_are_those_of_setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(Path(__file__).parents[3] / "setup.cfg")
    declared = {}
    for name, text in parser["options.extras_require"].items():
        if name == "dev":
            continue
        for package, least, most in re.findall(
            r"^(\w+)(?:\[\w+\])?\s*>=([\d.]+),<([\d.]+)$", text, re.MULTILINE
        ):
            declared[package] = (least, most)
    assert declared.items() >= {**versions.SUPPORTED, **versions.NEEDED_BY_PETASTORM}.items()
    assert parser["options"]["python_requires"] == f">={versions.OLDEST_PYTHON}"


@pytest.mark.parametrize(
    ("version", "than", "is_older"),
    [
        ("3.5.9", "3.5", False),
        ("3.9", "3.11", True),
        ("2.13.0+cpu", "2.10", False),
        ("2.10.0a0+git", "2.10", False),
        ("14.0.2", "15", True),
        ("3", "3.0.0", False),
        ("unknown", "3", False),
    ],
)
def test_versions_are_compared_as_numbers(version, than, is_older):
    assert versions.is_older(version, than) is is_older

"""A finding, and versions as numbers."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from sparkdl_runner.doctor.findings import versions
from sparkdl_runner.doctor.findings.finding import (
    NOT_CHECKED,
    OK,
    PROBLEM,
    Finding,
    guarded,
    merged,
    not_checked,
    ok,
    problem,
    worst,
)


def test_the_same_of_several_hosts_is_one_finding():
    found = merged([ok("clock", "fine", "a"), ok("disk", "fine", "a"), ok("clock", "fine", "b")])
    assert [(finding.check, finding.where) for finding in found] == [
        ("clock", ("a", "b")),
        ("disk", ("a",)),
    ]


def test_what_was_not_checked_is_no_fault():
    assert worst([ok("a", ""), not_checked("b", "")]) == OK
    assert worst([]) == OK
    assert worst([not_checked("b", ""), problem("c", "", expected="", advice="")]) == PROBLEM


def test_a_check_that_fails_itself_is_a_finding_and_keeps_what_it_found_before():
    def breaks():
        yield ok("first", "fine")
        raise KeyError("gone")

    found = guarded("second", breaks)
    assert [(finding.check, finding.status) for finding in found] == [
        ("first", OK),
        ("second", NOT_CHECKED),
    ]
    assert "KeyError: 'gone'" in found[1].found
    assert "report" in found[1].advice


def test_an_unknown_status_is_refused():
    with pytest.raises(ValueError, match="status is 'bad'"):
        Finding(check="x", status="bad", found="")


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

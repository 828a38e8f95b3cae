"""Versions as numbers, and the ranges that this package supports."""

from __future__ import annotations

import re

from sparkdl_runner.doctor.findings.finding import Finding, problem, warning

# As in setup.cfg, which a test compares: the least version, and the first that is too new.
SUPPORTED = {
    "pyspark": ("3.5", "5"),
    "torch": ("2.3", "3"),
    "horovod": ("0.28.1", "0.29"),
    "tensorflow": ("2.21", "3"),
    "petastorm": ("0.12.1", "0.13"),
    "mlflow": ("2.13", "4"),
}
NEEDED_BY_PETASTORM = {"pyarrow": ("14.0.1", "15"), "numpy": ("1.23", "2")}
OLDEST_PYTHON = "3.11"


def range_of(package: str) -> str:
    """The versions of a package that are supported, as a person reads it."""
    return f"{package} {in_words({**SUPPORTED, **NEEDED_BY_PETASTORM}[package])}"


def pip_install(package: str) -> str:
    """The command that installs a version that is supported."""
    least, first_untested = {**SUPPORTED, **NEEDED_BY_PETASTORM}[package]
    return f"pip install '{package}>={least},<{first_untested}'"


def out_of_range(package: str, version: str, *, found: str, advice: str) -> Finding | None:
    """Whether a version is older than what is supported, or newer than what was tested.

    Args:
        package: One of ``SUPPORTED``.
        version: The one that is installed.
        found: Names it, for the finding.
        advice: How to install another, for one that is too old.

    Returns:
        What is wrong; None if it is supported.
    """
    oldest, first_untested = SUPPORTED[package]
    if is_older(version, oldest):
        return problem(f"{found} is too old.", expected=range_of(package), advice=advice)
    if is_within(version, SUPPORTED[package]):
        return None
    return warning(
        f"{found} is newer than what was tested.",
        expected=range_of(package),
        advice=f"If runs fail: pip install '{package}<{first_untested}'.",
    )


def numbers(version: str) -> tuple[int, ...]:
    """The release of a version, for comparing: ``2.13.0+cpu`` is (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


def is_older(version: str, than: str) -> bool:
    """Whether a version comes before another; not if it is unknown."""
    own, other = numbers(version), numbers(than)
    width = max(len(own), len(other))
    return bool(own) and own + (0,) * (width - len(own)) < other + (0,) * (width - len(other))


def is_within(version: str, limits: tuple[str, str]) -> bool:
    """Whether a version is in a range; also if it is unknown."""
    return not is_older(version, limits[0]) and (
        not numbers(version) or is_older(version, limits[1])
    )


def in_words(limits: tuple[str, str]) -> str:
    """A range as a person reads it."""
    return f"{limits[0]} or later, before {limits[1]}"

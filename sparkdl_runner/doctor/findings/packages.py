"""Which versions are installed on a host, and do they go together?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkdl_runner import __version__
from sparkdl_runner.doctor.findings.finding import Finding, not_checked, ok, problem, warning
from sparkdl_runner.doctor.findings.versions import (
    NEEDED_BY_PETASTORM,
    OLDEST_PYTHON,
    SUPPORTED,
    in_words,
    is_older,
    is_within,
    numbers,
)

# Ranks exchange what these write, or must agree in what they mean.
_SAME_EVERYWHERE = ("torch", "horovod", "sparkdl-runner")


def judge_python(facts: dict[str, Any], where: str) -> Finding:
    """Whether this Python is one that this package runs in."""
    found = f"Python {facts['python']} ({facts['executable']})"
    if is_older(facts["python"], OLDEST_PYTHON):
        return problem(
            "python",
            found + ".",
            expected=f"Python {OLDEST_PYTHON} or later",
            advice="Set PYSPARK_PYTHON to a newer Python with sparkdl_runner installed.",
            where=where,
        )
    return ok("python", found, where)


def judge_arrow(facts: dict[str, Any], spark_version: str, where: str) -> Iterator[Finding]:
    """Whether pyarrow serves Spark, and pyarrow and numpy serve petastorm."""
    installed = facts["packages"]
    arrow, least = installed.get("pyarrow"), facts["needed_by_spark"].get("pyarrow")
    check = "arrow"
    if arrow is None:
        yield problem(
            check,
            "pyarrow is not installed.",
            expected=f"pyarrow {least or '14'} or later",
            advice="pip install 'sparkdl-runner[spark]' (conversions and loaders need it, too).",
            where=where,
        )
    elif least and is_older(arrow, least):
        yield problem(
            check,
            f"pyarrow {arrow} is too old for Spark {spark_version}.",
            expected=f"pyarrow {least} or later",
            advice=f"pip install 'pyarrow>={least}'; petastorm needs an older one, so it stays "
            "with Spark 3.5.",
            where=where,
        )
    else:
        yield ok(check, f"pyarrow {arrow}, numpy {installed.get('numpy', '(none)')}", where)
    yield _judge_petastorm(facts, where)


def _judge_petastorm(facts: dict[str, Any], where: str) -> Finding:
    check, installed = "petastorm", facts["packages"]
    version = installed.get("petastorm")
    if version is None:
        return ok(check, "not installed; the arrow engine reads conversions", where)
    way_out = "uninstall petastorm: the arrow engine needs none of it"
    for name, limits in NEEDED_BY_PETASTORM.items():
        found = installed.get(name, "")
        if found and not is_within(found, limits):
            too = "old" if is_older(found, limits[0]) else "new"
            return problem(
                check,
                f"{name} {found} is too {too} for petastorm {version}.",
                expected=f"{name} {in_words(limits)}",
                advice=f"pip install '{name}>={limits[0]},<{limits[1]}' (with Spark 3.5), or "
                f"{way_out}.",
                where=where,
            )
    answer = facts["petastorm"] or {}
    error = answer.get("petastorm", {}).get("error") or answer.get("end")
    if error:
        return problem(
            check,
            f"petastorm {version} does not load: {error}.",
            expected="petastorm loads",
            advice=f"pip install 'sparkdl-runner[petastorm]', or {way_out}.",
            where=where,
        )
    if not is_within(version, SUPPORTED["petastorm"]):
        return warning(
            check,
            f"petastorm {version} loads, and is not the one that is tested.",
            expected=f"petastorm {in_words(SUPPORTED['petastorm'])}",
            advice="pip install 'sparkdl-runner[petastorm]'.",
            where=where,
        )
    return ok(check, f"petastorm {version} loads", where)


def judge_mlflow(facts: dict[str, Any], where: str) -> Finding:
    """Whether a supported MLflow is installed."""
    check, limits = "mlflow.version", SUPPORTED["mlflow"]
    version = facts["packages"].get("mlflow") or facts["packages"].get("mlflow-skinny")
    if version is None:
        return not_checked(
            check,
            "MLflow is not installed; runs are not tracked.",
            where,
            advice="pip install 'sparkdl-runner[mlflow]' to have them tracked.",
        )
    if is_older(version, limits[0]):
        return problem(
            check,
            f"MLflow {version} is too old.",
            expected=f"MLflow {in_words(limits)}",
            advice=f"pip install 'mlflow>={limits[0]},<{limits[1]}'.",
            where=where,
        )
    if not is_within(version, limits):
        return warning(
            check,
            f"MLflow {version} is newer than what was tested.",
            expected=f"MLflow {in_words(limits)}",
            advice=f"If tracking fails: pip install 'mlflow<{limits[1]}'.",
            where=where,
        )
    return ok(check, f"MLflow {version}", where)


def judge_same(
    driver: dict[str, Any], answer: dict[str, Any], facts: dict[str, Any] | None, where: str
) -> Iterator[Finding]:
    """Whether an executor has what the driver has.

    Args:
        driver: The driver's facts.
        answer: The executor's own words.
        facts: What its host is like, if that could be seen.
        where: The executor.
    """
    same = True
    if answer["python"].split(".")[:2] != driver["python"].split(".")[:2]:
        same = False
        yield problem(
            "spark.python",
            f"Executors run Python {answer['python']} ({answer['executable']}), the driver "
            f"{driver['python']} ({driver['executable']}).",
            expected="one version of Python everywhere",
            advice="Set PYSPARK_PYTHON to a Python of the driver's version, before the session "
            "starts, or send one along (--archives with venv-pack).",
            where=where,
        )
    if "sparkdl_runner" not in answer:
        same = False
        yield problem(
            "versions",
            f"The executor's Python ({answer['executable']}) cannot import sparkdl_runner: "
            f"{answer.get('sparkdl_runner_error', 'it is not there')}.",
            expected="sparkdl_runner in the Python that Spark starts",
            advice="Set PYSPARK_PYTHON to the Python in which sparkdl_runner is installed, before "
            "the session starts; on a cluster, install it on every host, or send it along "
            "(--py-files with its wheel, or --archives with venv-pack).",
            where=where,
        )
    elif answer["sparkdl_runner"] != __version__:
        same = False
        yield problem(
            "versions",
            f"sparkdl_runner is {answer['sparkdl_runner']} here and {__version__} on the driver.",
            expected="one version everywhere",
            advice="Install the driver's version on every host.",
            where=where,
        )
    for name in _SAME_EVERYWHERE[:2] if facts else ():
        own, theirs = driver["packages"].get(name), (facts or {})["packages"].get(name)
        if own and theirs and numbers(own) != numbers(theirs):
            same = False
            yield problem(
                "versions",
                f"{name} is {theirs} here and {own} on the driver.",
                expected="one version everywhere",
                advice=f"Install {name} {own} on every host (with Horovod: build it again).",
                where=where,
            )
    if same:
        yield ok("versions", "Python and packages are the driver's", where)

"""Which versions are installed in a Python, and do they go together?"""

from __future__ import annotations

from collections.abc import Iterator

from sparkdl_runner.base.version import __version__
from sparkdl_runner.doctor.findings.checks import EXECUTOR, PYTHON, Place
from sparkdl_runner.doctor.findings.finding import Finding, not_checked, ok, problem
from sparkdl_runner.doctor.findings.versions import (
    NEEDED_BY_PETASTORM,
    OLDEST_PYTHON,
    is_older,
    is_within,
    numbers,
    out_of_range,
    pip_install,
    range_of,
)


@PYTHON("python", expected=f"Python {OLDEST_PYTHON} or later")
def python(place: Place) -> Finding:
    """Whether this Python is one that this package runs in."""
    text = f"Python {place.facts['python']} ({place.facts['executable']})"
    if not is_older(place.facts["python"], OLDEST_PYTHON):
        return ok(text)
    return problem(
        f"{text}.", advice="Set PYSPARK_PYTHON to a newer Python with sparkdl_runner installed."
    )


@PYTHON("arrow")
def arrow(place: Place) -> Finding:
    """Whether pyarrow serves Spark."""
    installed, least = place.facts["packages"], place.facts["needed_by_spark"].get("pyarrow")
    arrow = installed.get("pyarrow")
    if arrow is None:
        return problem(
            "pyarrow is not installed.",
            expected=f"pyarrow {least or '14'} or later",
            advice="pip install 'sparkdl-runner[spark]' (conversions and loaders need it, too).",
        )
    if least and is_older(arrow, least):
        return problem(
            f"pyarrow {arrow} is too old for Spark {place.spark_version}.",
            expected=f"pyarrow {least} or later",
            advice=f"pip install 'pyarrow>={least}'; petastorm needs an older one, so it stays "
            "with Spark 3.5.",
        )
    return ok(f"pyarrow {arrow}, numpy {installed.get('numpy', '(none)')}")


@PYTHON("petastorm", expected="petastorm loads")
def petastorm(place: Place) -> Finding:
    """Whether petastorm loads, with versions of pyarrow and numpy that it can use."""
    installed = place.facts["packages"]
    version = installed.get("petastorm")
    if version is None:
        return ok("not installed; the arrow engine reads conversions")
    way_out = "uninstall petastorm: the arrow engine needs none of it"
    for name, limits in NEEDED_BY_PETASTORM.items():
        present = installed.get(name, "")
        if present and not is_within(present, limits):
            too = "old" if is_older(present, limits[0]) else "new"
            return problem(
                f"{name} {present} is too {too} for petastorm {version}.",
                expected=range_of(name),
                advice=f"{pip_install(name)} (with Spark 3.5), or {way_out}.",
            )
    facts = place.facts["petastorm"] or {}
    advice = f"pip install 'sparkdl-runner[petastorm]', or {way_out}."
    if error := facts.get("petastorm", {}).get("error") or facts.get("end"):
        return problem(f"petastorm {version} does not load: {error}.", advice=advice)
    text = f"petastorm {version}"
    return out_of_range("petastorm", version, found=text, advice=advice) or ok(f"{text} loads")


@PYTHON("mlflow.version")
def mlflow(place: Place) -> Finding | None:
    """Whether a supported MLflow is installed on the driver."""
    if not place.is_driver:
        return None
    installed = place.facts["packages"]
    version = installed.get("mlflow") or installed.get("mlflow-skinny")
    if version is None:
        return not_checked(
            "MLflow is not installed; runs are not tracked.",
            advice="pip install 'sparkdl-runner[mlflow]' to have them tracked.",
        )
    text = f"MLflow {version}"
    advice = f"{pip_install('mlflow')}."
    return out_of_range("mlflow", version, found=text, advice=advice) or ok(text)


@EXECUTOR("host")
def host_was_seen(place: Place) -> Finding | None:
    """Whether the host could be looked at."""
    if "error" not in place.facts:
        return None
    return not_checked(f"this host was not looked at: {place.facts['error']}")


@EXECUTOR("versions", expected="one version everywhere")
def same_packages(executor: Place) -> Iterator[Finding]:
    """Whether an executor has the driver's versions of what both write and read."""
    answer, driver = executor.answer, executor.driver
    if "sparkdl_runner" not in answer:
        yield problem(
            f"The executor's Python ({answer['executable']}) cannot import sparkdl_runner: "
            f"{answer.get('sparkdl_runner_error', 'it is not there')}.",
            expected="sparkdl_runner in the Python that Spark starts",
            advice="Set PYSPARK_PYTHON to the Python in which sparkdl_runner is installed, before "
            "the session starts; on a cluster, install it on every host, or send it along "
            "(--py-files with its wheel, or --archives with venv-pack).",
        )
        return
    pairs = {"sparkdl_runner": (answer["sparkdl_runner"], __version__)}
    if driver and executor.was_seen:
        for name in ("torch", "horovod", "tensorflow"):
            pairs[name] = (executor.facts["packages"].get(name), driver["packages"].get(name))
    others = {
        name: (here, there)
        for name, (here, there) in pairs.items()
        if here and there and numbers(here) != numbers(there)
    }
    for name, (here, there) in others.items():
        yield problem(
            f"{name} is {here} here and {there} on the driver.",
            advice=f"Install {name} {there} on every host (with Horovod: build it again).",
        )
    if not others:
        yield ok("Python and packages are the driver's")

"""Which Spark is installed, and would it be the one that starts?"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkdl_runner.doctor.findings.finding import Finding, ok, problem, warning
from sparkdl_runner.doctor.findings.versions import SUPPORTED, in_words, is_older, is_within


@dataclass(frozen=True, kw_only=True)
class Installation:
    """pyspark as it lies on the disk, without importing it.

    Attributes:
        version: pyspark's; empty if there is none.
        folder: Where it is.
        home: Where the Spark is that it would start.
    """

    version: str = ""
    folder: Path | None = None
    home: Path | None = None


def find_installation(environment: Mapping[str, str] = os.environ) -> Installation:
    """Looks for pyspark and for SPARK_HOME."""
    try:
        spec = importlib.util.find_spec("pyspark")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return Installation()
    folder = Path(spec.origin).parent
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        text = ""
    version = re.search(r"__version__[^=]*=\s*[\"']([^\"']+)", text)
    home = Path(environment["SPARK_HOME"]) if environment.get("SPARK_HOME") else folder
    return Installation(
        version=version.group(1) if version else "unknown", folder=folder, home=home
    )


def check_version(installation: Installation) -> Finding:
    """Whether there is a pyspark that this package runs on."""
    check, limits = "spark.version", SUPPORTED["pyspark"]
    install = "pip install 'sparkdl-runner[spark]' (on Databricks never: it brings its own)"
    if not installation.version:
        return problem(
            check,
            "pyspark is not installed in this Python.",
            expected=f"pyspark {in_words(limits)}",
            advice=f"{install}; or use a negative number of ranks, which needs no Spark.",
        )
    found = f"pyspark {installation.version} ({installation.folder})"
    if is_older(installation.version, limits[0]):
        return problem(
            check,
            found + ".",
            expected=f"pyspark {in_words(limits)}",
            advice="Use a newer cluster (on Databricks: runtime 15.4 LTS or later), or elsewhere "
            f"{install}.",
        )
    if not is_within(installation.version, limits):
        return warning(
            check,
            f"{found}, which this version of sparkdl_runner has not been tested on.",
            expected=f"pyspark {in_words(limits)}",
            advice="Look for a newer sparkdl_runner.",
        )
    return ok(check, found)


def check_home(installation: Installation) -> Finding | None:
    """Whether the Spark that SPARK_HOME names is pyspark's own; None if it does not matter."""
    home, version = installation.home, installation.version
    if home is None or home == installation.folder:
        return None
    check = "spark.home"
    advice = (
        "Unset SPARK_HOME, so that pip's pyspark brings its own Spark, or install the pyspark of "
        f"that Spark (pip install 'pyspark=={_jars_version(home) or 'ITS VERSION'}')."
    )
    theirs = _jars_version(home)
    if theirs is None:
        return problem(
            check,
            f"SPARK_HOME is {home}, where there is no Spark (no jars/spark-core_*.jar).",
            expected="SPARK_HOME unset, or the folder of a Spark",
            advice="Unset SPARK_HOME, or set it to the folder that holds bin/ and jars/.",
        )
    if version != "unknown" and theirs != version:
        return problem(
            check,
            f"SPARK_HOME is {home}, a Spark {theirs}, and pyspark in this Python is {version}.",
            expected="one version of both",
            advice=advice,
        )
    return ok(check, f"SPARK_HOME is {home}, Spark {theirs}")


def check_connect(
    master: str | None, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> Finding | None:
    """Whether the session would be one of Spark Connect; None if not."""
    found = None
    if (master or "").startswith("sc://"):
        found = f"The master is {master}"
    elif environment.get("SPARK_REMOTE"):
        found = "SPARK_REMOTE is set"
    elif conf.get("spark.remote"):
        found = "spark.remote is set"
    elif (conf.get("spark.api.mode") or "").lower() == "connect":
        found = "spark.api.mode is connect"
    elif environment.get("SPARK_CONNECT_MODE") == "1":
        found = "SPARK_CONNECT_MODE is 1"
    if found is None:
        return None
    return problem(
        "spark.connect",
        f"{found}, so sessions reach Spark through Spark Connect, which offers no barrier tasks "
        "with a channel to the driver.",
        expected="a classic session, in the driver's own process",
        advice="Unset it and name a master (spark://…, yarn, k8s://…, local[N]); on Databricks use "
        "dedicated access mode, not serverless or standard; or use a negative number of ranks.",
    )


def defaults(installation: Installation, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of ``spark-defaults.conf``, if there is one."""
    folder = environment.get("SPARK_CONF_DIR") or (installation.home and installation.home / "conf")
    found = {}
    try:
        lines = Path(folder or "", "spark-defaults.conf").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    for line in lines:
        match = re.match(r"\s*([^\s#=:]+)[\s=:]+(.*\S)", line)
        if match:
            found[match.group(1)] = match.group(2)
    return found


def _jars_version(home: Path) -> str | None:
    for jar in sorted(home.glob("jars/spark-core_*.jar")):
        match = re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar.name)
        if match:
            return match.group(1)
    return None

"""Which Spark and Java are installed, would they be the ones that start, and is a master there?"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkdl_runner.base.databricks import is_serverless
from sparkdl_runner.doctor.findings.checks import Checks
from sparkdl_runner.doctor.findings.finding import Finding, ok, problem, warning
from sparkdl_runner.doctor.findings.versions import out_of_range, range_of
from sparkdl_runner.doctor.question import Question, is_under_submit
from sparkdl_runner.launch.driver.spark import context, java
from sparkdl_runner.launch.wire.network import split_host_port

MASTER_SECONDS = 5.0
"""How long the standalone masters together may take to answer. Spark tries for minutes."""
_SCHEME = "spark://"


@dataclass(frozen=True, kw_only=True)
class Installation:
    """pyspark as it lies on the disk, without importing it, and Spark's settings.

    Attributes:
        version: pyspark's; empty if there is none.
        folder: Where it is.
        home: Where the Spark is that it would start.
        master: The one that was asked for.
        settings: Those of ``spark-defaults.conf`` and those that were asked for.
        environment: The process's.
    """

    version: str = ""
    folder: Path | None = None
    home: Path | None = None
    master: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def remote(self) -> str:
        """The Spark Connect server's address, which may hold a token; empty for none."""
        given = (
            self.master,
            self.environment.get("SPARK_REMOTE"),
            self.settings.get("spark.remote"),
        )
        return next((text for text in given if text and text.startswith("sc://")), "")

    @property
    def is_serverless(self) -> bool:
        """Whether this is a serverless notebook of Databricks, and no other Spark is named."""
        return not self.master and is_serverless(self.environment)


INSTALLATION: Checks[Installation] = Checks()
"""Checks of the driver's installation. With a problem here no session is started."""


def find_installation(
    question: Question, environment: Mapping[str, str] = os.environ
) -> Installation:
    """Looks for pyspark, for SPARK_HOME, and for Spark's settings."""
    try:
        spec = importlib.util.find_spec("pyspark")
    except (ImportError, ValueError):
        spec = None
    version, folder = "", None
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        try:
            text = (folder / "version.py").read_text()
        except OSError:
            text = ""
        found = re.search(r"__version__[^=]*=\s*[\"']([^\"']+)", text)
        version = found[1] if found else "unknown"
    home = Path(environment["SPARK_HOME"]) if environment.get("SPARK_HOME") else folder
    return Installation(
        version=version,
        folder=folder,
        home=home,
        master=question.master,
        settings={**_defaults(home, environment), **question.conf},
        environment=environment,
    )


@INSTALLATION("spark.version", expected=range_of("pyspark"))
def spark_version(installed: Installation) -> Finding:
    """Whether there is a pyspark that this package runs on."""
    if not installed.version:
        context.require_spark_context()
    context.check_version(installed.version)
    text = f"pyspark {installed.version} ({installed.folder})"
    outside = out_of_range(
        "pyspark", installed.version, found=text, advice="Look for a newer sparkdl_runner."
    )
    return outside or ok(text)


@INSTALLATION("java", expected="a Java that this Spark starts on, and is tested on")
def java_of_spark(installed: Installation) -> Finding | None:
    """Whether there is a Java that this Spark starts on."""
    if installed.remote or installed.is_serverless:
        return None  # It is started elsewhere.
    if is_under_submit(installed.environment):
        return ok("spark-submit has started it")
    chosen = java.check_java(installed.version, installed.home)
    words = f"Java {chosen.version} ({chosen.path})"
    if chosen.is_tested:
        return ok(words)
    return warning(
        f"{words}, on which Spark's authors do not test it.",
        advice="If the session does not start or Arrow fails: "
        f"{java.how_to_install(installed.version)}",
    )


@INSTALLATION("spark.home")
def spark_home(installed: Installation) -> Finding | None:
    """Whether the Spark that SPARK_HOME names is pyspark's own."""
    home, version = installed.home, installed.version
    if home is None or home == installed.folder or is_under_submit(installed.environment):
        return None
    theirs = _version_of_jars(home)
    if theirs is None:
        return problem(
            f"SPARK_HOME is {home}, where there is no Spark (no jars/spark-core_*.jar).",
            expected="SPARK_HOME unset, or the folder of a Spark",
            advice="Unset SPARK_HOME, or set it to the folder that holds bin/ and jars/.",
        )
    if version not in ("unknown", theirs):
        return problem(
            f"SPARK_HOME is {home}, a Spark {theirs}, and pyspark in this Python is {version}.",
            expected="one version of both",
            advice="Unset SPARK_HOME, so that pip's pyspark brings its own Spark, or install the "
            f"pyspark of that Spark (pip install 'pyspark=={theirs}').",
        )
    return ok(f"SPARK_HOME is {home}, Spark {theirs}")


@INSTALLATION("spark.connect", expected="a classic session, or the address of a server")
def spark_connect(installed: Installation) -> Finding | None:
    """Whether the session would be one of Spark Connect."""
    if installed.remote or installed.is_serverless:
        return ok("sessions reach Spark through Spark Connect")
    settings, environment = installed.settings, installed.environment
    signs = {
        "SPARK_REMOTE is no address (sc://HOST)": environment.get("SPARK_REMOTE"),
        "spark.remote is no address (sc://HOST)": settings.get("spark.remote"),
        "spark.api.mode is connect": settings.get("spark.api.mode", "").lower() == "connect",
        "SPARK_CONNECT_MODE is 1": environment.get("SPARK_CONNECT_MODE") == "1",
    }
    for sign, is_seen in signs.items():
        if is_seen:
            raise context.no_spark_connect(
                f"{sign}, so that sessions reach Spark through Spark Connect"
            )
    return None


@INSTALLATION("spark.master", expected="a master that answers at its address")
def standalone_master(installed: Installation) -> Finding | None:
    """Whether anyone answers at the address of a standalone master."""
    master = installed.master or installed.settings.get("spark.master", "")
    if not master.startswith(_SCHEME) or is_under_submit(installed.environment):
        return None
    addresses = master.removeprefix(_SCHEME).split(",")
    silent = []
    for address in addresses:
        reason = _silence(address, MASTER_SECONDS / len(addresses))
        if not reason:
            return ok(f"somebody answers at {address}")
        silent.append(f"{address} ({reason})")
    return problem(
        f"Nobody answers at {' or '.join(silent)}, which is the master.",
        advice="Start the master there (sbin/start-master.sh), or take the address that its own "
        "page and log name: spark://HOST:PORT, by default port 7077.",
    )


def _defaults(home: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of ``spark-defaults.conf``, if there is one."""
    folder = environment.get("SPARK_CONF_DIR") or (home and home / "conf")
    try:
        lines = Path(folder or "", "spark-defaults.conf").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    matches = (re.match(r"\s*([^\s#=:]+)[\s=:]+(.*\S)", line) for line in lines)
    return {match[1]: match[2] for match in matches if match}


def _version_of_jars(home: Path) -> str | None:
    for jar in sorted(home.glob("jars/spark-core_*.jar")):
        match = re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar.name)
        if match:
            return match[1]
    return None


def _silence(address: str, seconds: float) -> str:
    """Why nobody answers there; empty if somebody does."""
    try:
        host, port = split_host_port(address)
        socket.create_connection((host, port), seconds).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""

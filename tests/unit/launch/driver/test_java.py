"""Which Java serves which Spark, and the sentence in what Java says."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.spark import java


@pytest.fixture(autouse=True)
def _is_patient(monkeypatch):
    monkeypatch.setattr(java, "ANSWER_SECONDS", 120.0)


@pytest.mark.parametrize(
    ("version", "major", "is_tested"),
    [
        ("1.8.0_402", 3, True),
        ("11.0.2", 3, True),
        ("17.0.9", 3, True),
        ("21.0.1", 3, False),
        ("17.0.9", 4, True),
        ("21.0.1", 4, True),
        ("25.0.1", 4, False),
    ],
)
def test_which_java_serves_which_spark(version, major, is_tested):
    assert java.judge_version(version, path="/java", major=major).is_tested is is_tested


@pytest.mark.parametrize(
    ("version", "major", "too"),
    [("25", 3, "new"), ("24", 3, "new"), ("1.7.0_80", 3, "old"), ("11.0.2", 4, "old")],
)
def test_which_java_serves_none(version, major, too):
    with pytest.raises(LaunchError, match=f"is too {too} for this Spark. Install .* JAVA_HOME"):
        java.judge_version(version, path="/java", major=major)


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path.parents[1]


def test_a_java_without_the_module_that_spark_4_asks_for(tmp_path, monkeypatch):
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "spark" / "jars" / "spark-launcher_2.13-4.3.0.jar", "w") as jar:
        jar.writestr(
            "org/apache/spark/launcher/JavaModuleOptions.class",
            b"--add-modules=jdk.incubator.vector",
        )
    fails = (
        'echo "java.lang.module.FindException: Module jdk.incubator.vector not found" >&2; exit 1'
    )
    works = "echo 'openjdk version \"17.0.9\"' >&2"
    reduced = f'case "$*" in *vector*) {fails} ;; *) {works} ;; esac'
    monkeypatch.setenv("JAVA_HOME", str(executable(tmp_path / "java" / "bin" / "java", reduced)))
    with pytest.raises(LaunchError, match=r"lacks the module jdk\.incubator\.vector.*full JDK"):
        java.check_java("4.3.0", tmp_path / "spark")
    assert java.check_java("3.5.9").version == "17.0.9"


def test_a_java_that_does_not_start(tmp_path, monkeypatch):
    home = executable(
        tmp_path / "java" / "bin" / "java", "echo cannot execute binary >&2; exit 126"
    )
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(LaunchError, match="cannot execute binary"):
        java.check_java("3.5.9")


def test_no_java_at_all(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    ended = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
    reason, advice = java.why_not_started(ended)
    assert reason == "JAVA_HOME is /nowhere, where there is no bin/java"
    assert advice.startswith("Install Java 17")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="There is no Java: JAVA_HOME is not set"):
        java.check_java()


@pytest.mark.parametrize(
    ("said", "meaning", "advice"),
    [
        ("All masters are unresponsive! Giving up.", "no Spark master answers", "Start the master"),
        ("java.lang.UnsupportedClassVersionError: org/apache", "too old", "JAVA_HOME"),
        ("java.net.UnknownHostException: vm: vm", "leads nowhere", "/etc/hosts"),
        ("java.io.IOException: No space left on device", "full", "Make room"),
        ("basedir must be absolute: ?/.ivy2/local", "has no name or home", "/etc/passwd"),
        ("NullPointerException: invalid null input: name", "has no name or home", "/etc/passwd"),
        ("either HADOOP_CONF_DIR or YARN_CONF_DIR must be set", "YARN's", "HADOOP_CONF_DIR"),
    ],
)
def test_why_a_session_does_not_start(said, meaning, advice):
    reason, what_to_do = java.why_not_started("Py4JError: it ended", ["WARN x", said])
    assert meaning in reason
    assert advice in what_to_do


@pytest.mark.parametrize(
    ("error", "output", "reason"),
    [
        ("it ended", ["one", "Caused by: java.lang.Error: odd", "two"], "java.lang.Error: odd"),
        ("An error occurred\n: java.lang.X: bad\n\tat a.B", [], "bad"),
        ("it ended with exit code 1.\nmore", [], "it ended with exit code 1"),
    ],
)
def test_an_unknown_reason_is_told_in_javas_words(error, output, reason):
    found, advice = java.why_not_started(error, output)
    assert found.endswith(reason)
    assert advice == ""


class Thrown:
    """An exception of Java's, as py4j shows it."""

    def __init__(self, kind: str, message: str | None, cause: Thrown | None = None) -> None:
        self._kind, self._message, self._cause = kind, message, cause

    def getMessage(self) -> str | None:  # noqa: N802
        return self._message

    def getCause(self) -> Thrown | None:  # noqa: N802
        return self._cause

    def getClass(self) -> Thrown:  # noqa: N802
        return self

    def getName(self) -> str:  # noqa: N802
        return self._kind


def test_the_cause_is_the_last_that_says_something():
    names_only = Thrown("java.lang.ClassNotFoundException", "a.B")
    error = RuntimeError("An error occurred while calling o1.load.")
    error.java_exception = Thrown(  # type: ignore[attr-defined]
        "a.SparkException", "Job aborted", Thrown("a.B", "no such source.\n at x", names_only)
    )
    assert java.cause(error) == "no such source"
    assert java.cause(ValueError("Bad Exception: it broke.")) == "it broke"
    assert java.cause(KeyError()) == "KeyError"

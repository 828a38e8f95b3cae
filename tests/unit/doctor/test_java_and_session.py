"""What is made of what Java and Spark say of themselves."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from host_facts import one

from sparkdl_runner.doctor import installation, java
from sparkdl_runner.doctor.findings import session as session_findings
from sparkdl_runner.doctor.findings.finding import OK, PROBLEM, WARNING


@pytest.mark.parametrize(
    ("version", "major", "status"),
    [
        ("1.8.0_402", 3, OK),
        ("11.0.2", 3, OK),
        ("17.0.9", 3, OK),
        ("21.0.1", 3, WARNING),
        ("25", 3, PROBLEM),
        ("1.7.0_80", 3, PROBLEM),
        ("11.0.2", 4, PROBLEM),
        ("17.0.9", 4, OK),
        ("21.0.1", 4, OK),
        ("25.0.1", 4, WARNING),
    ],
)
def test_which_java_serves_which_spark(version, major, status):
    found = java.judge(version, major=major, expected="Java 17", java="/java")
    assert found.status == status
    assert found.status == OK or "JAVA_HOME" in found.advice


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
    found = one(java.check_java("4.3.0", tmp_path / "spark"))
    assert found.status == PROBLEM
    assert "lacks the module jdk.incubator.vector" in found.found
    assert "full JDK" in found.advice
    assert one(java.check_java("3.5.9", None)).status == OK


def test_a_java_that_does_not_start(tmp_path, monkeypatch):
    home = executable(
        tmp_path / "java" / "bin" / "java", "echo cannot execute binary >&2; exit 126"
    )
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = one(java.check_java("3.5.9", None))
    assert found.status == PROBLEM
    assert "cannot execute binary" in found.found


def test_spark_home_that_is_no_spark(tmp_path):
    known = installation.Installation(version="3.5.9", folder=Path("/lib/pyspark"), home=tmp_path)
    found = installation.check_home(known)
    assert found is not None
    assert found.status == PROBLEM
    assert "no Spark" in found.found


@pytest.mark.parametrize(
    ("version", "status"), [("", PROBLEM), ("3.4.1", PROBLEM), ("3.5.0", OK), ("5.0.0", WARNING)]
)
def test_versions_of_spark(version, status):
    found = installation.check_version(installation.Installation(version=version))
    assert found.status == status


@pytest.mark.parametrize(
    ("master", "conf", "environment"),
    [
        ("sc://host:15002", {}, {}),
        (None, {"spark.remote": "sc://host"}, {}),
        (None, {"spark.api.mode": "connect"}, {}),
        (None, {}, {"SPARK_REMOTE": "sc://host"}),
    ],
)
def test_spark_connect_is_seen_wherever_it_is_set(master, conf, environment):
    found = installation.check_connect(master, conf, environment)
    assert found is not None
    assert found.check == "spark.connect"
    assert installation.check_connect("spark://host:7077", {}, {}) is None


def test_settings_are_read_from_the_defaults_file(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(
        "# words\nspark.master   spark://a:7077\nspark.local.dir=/big disk\n\n"
    )
    found = installation.defaults(installation.Installation(), {"SPARK_CONF_DIR": str(tmp_path)})
    assert found == {"spark.master": "spark://a:7077", "spark.local.dir": "/big disk"}


def session(**changes: Any) -> dict[str, Any]:
    return {
        "master": "spark://a:7077",
        "version": "3.5.9",
        "java": "17.0.9",
        "python": "3.11.7",
        "worker_python": "python3",
        "single_host": False,
        "settings": {},
        "encryption": [],
        "dynamic_allocation": False,
        "gpu_obstacle": None,
        "slots": 4,
        **changes,
    }


def test_no_executors_where_gpus_are_asked_for():
    asked = session(slots=0, settings={"spark.executor.resource.gpu.amount": "1"})
    found = session_findings.judge_slots(asked, 2)
    assert found.status == PROBLEM
    assert "No executor has registered" in found.advice
    assert "discovery script lists GPUs" in found.advice


def test_as_many_slots_as_ranks_are_enough():
    statuses = [session_findings.judge_slots(session(slots=4), ranks).status for ranks in (4, 5)]
    assert statuses == [OK, PROBLEM]


def test_encryption_on_one_host_is_no_matter():
    asked = session(encryption=["spark.ssl.enabled"], single_host=True)
    found = session_findings.judge_settings(asked, num_proc=2, backends=("torch",))
    assert one(found, "spark.encryption").status == OK


def test_gpus_that_ranks_would_share():
    told = (
        "Executors have 4 GPU(s) each, and a task gets 0. Set spark.task.resource.gpu.amount to 1."
    )
    found = one(
        session_findings.judge_settings(
            session(gpu_obstacle=told), num_proc=2, backends=("torch",)
        ),
        "gpu.amounts",
    )
    assert found.found == "Executors have 4 GPU(s) each, and a task gets 0."
    assert found.advice == "Set spark.task.resource.gpu.amount to 1."


@pytest.mark.parametrize(
    ("said", "meaning", "advice"),
    [
        ("All masters are unresponsive! Giving up.", "no Spark master answers", "master runs"),
        ("java.lang.UnsupportedClassVersionError: org/apache", "too old", "JAVA_HOME"),
        ("java.net.UnknownHostException: vm: vm", "leads nowhere", "/etc/hosts"),
        ("java.io.IOException: No space left on device", "full", "Make room"),
        ("either HADOOP_CONF_DIR or YARN_CONF_DIR must be set", "YARN's", "HADOOP_CONF_DIR"),
    ],
)
def test_why_a_session_does_not_start(said, meaning, advice):
    found = session_findings.judge_start({"error": "Py4JError: it ended"}, ["WARN x", said])
    assert found.status == PROBLEM
    assert meaning in found.found
    assert advice in found.advice


def test_a_session_that_says_nothing_known():
    found = session_findings.judge_start(
        {"error": "it ended with exit code 1"}, ["one", "Caused by: java.lang.Error: odd", "two"]
    )
    assert "java.lang.Error: odd" in found.found


@pytest.mark.parametrize(
    ("said", "check"),
    [
        ("Python in worker has different version (3, 9) than that in driver 3.11", "spark.python"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "spark.python"),
        ('Cannot run program "python3": error=2, No such file or directory', "spark.python"),
        ("ExecutorLostFailure (executor 1 exited)", "spark.executors"),
    ],
)
def test_why_executors_do_not_answer(said, check):
    found = session_findings.judge_stage({"error": said}, session())
    assert (found.check, found.status) == (check, PROBLEM)
    assert said[:20] in found.found
    assert found.advice

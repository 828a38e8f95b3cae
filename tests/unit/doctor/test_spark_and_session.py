"""What is made of what Spark and Java say of themselves."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from host_facts import one

from sparkdl_runner.doctor import installation
from sparkdl_runner.doctor.examination import SERVERLESS
from sparkdl_runner.doctor.findings import session
from sparkdl_runner.doctor.findings.checks import SESSION
from sparkdl_runner.doctor.findings.finding import NOT_CHECKED, OK, PROBLEM, WARNING
from sparkdl_runner.doctor.installation import Installation
from sparkdl_runner.doctor.question import Question
from sparkdl_runner.doctor.session import _is_restarted


def test_spark_home_that_is_no_spark(tmp_path):
    known = Installation(version="3.5.9", folder=Path("/lib/pyspark"), home=tmp_path)
    found = one(installation.spark_home(known))
    assert found.status == PROBLEM
    assert "no Spark" in found.found


@pytest.mark.parametrize(("version", "status"), [("3.4.1", PROBLEM), ("3.5.0", OK), ("5", WARNING)])
def test_versions_of_spark(version, status):
    found = one(installation.spark_version(Installation(version=version)))
    assert (found.check, found.status) == ("spark.version", status)
    assert status == OK or found.expected == "pyspark 3.5 or later, before 5"


@pytest.mark.parametrize(
    ("master", "conf", "environment"),
    [
        ("sc://host:15002/;token=secret", {}, {}),
        (None, {"spark.remote": "sc://host"}, {}),
        (None, {}, {"SPARK_REMOTE": "sc://host"}),
    ],
)
def test_a_server_of_spark_connect_needs_no_java_here(master, conf, environment):
    known = Installation(master=master, settings=conf, environment=environment)
    found = one(installation.spark_connect(known))
    assert (found.check, found.status) == ("spark.connect", OK)
    assert "secret" not in found.found
    assert not installation.java_of_spark(known)


def test_serverless_compute_of_databricks_needs_no_session_and_no_java():
    told = {"DATABRICKS_RUNTIME_VERSION": "client.5.7", "SPARK_REMOTE": "unix:///grpc.sock"}
    known = Installation(environment=told)
    assert one(installation.spark_connect(known)).status == OK
    assert not installation.java_of_spark(known)
    assert known.is_serverless
    assert not Installation(environment=told, master="local[2]").is_serverless
    assert not Installation(environment={"DATABRICKS_RUNTIME_VERSION": "17.3"}).is_serverless
    found = one(session.start({"skipped": "why", "advice": SERVERLESS}))
    assert found.status == NOT_CHECKED
    assert "Give a negative num_proc" in found.advice


@pytest.mark.parametrize(
    ("conf", "environment"),
    [
        ({"spark.api.mode": "connect"}, {}),
        ({"spark.remote": "local"}, {}),
        ({}, {"SPARK_REMOTE": "local[2]"}),
        ({}, {"SPARK_CONNECT_MODE": "1"}),
    ],
)
def test_spark_connect_without_a_servers_address_is_a_problem(conf, environment):
    found = one(installation.spark_connect(Installation(settings=conf, environment=environment)))
    assert (found.check, found.status) == ("spark.connect", PROBLEM)
    assert "Spark Connect, and what was called needs a classic session" in found.found
    assert not installation.spark_connect(Installation(master="spark://host:7077"))


def test_settings_are_read_from_the_defaults_file_and_come_after_those_asked_for(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text(
        "# words\nspark.master   spark://a:7077\nspark.local.dir=/big disk\nspark.x 1\n\n"
    )
    asked = Question(conf={"spark.x": "2"})
    found = installation.find_installation(asked, {"SPARK_CONF_DIR": str(tmp_path)})
    assert found.settings == {
        "spark.master": "spark://a:7077",
        "spark.local.dir": "/big disk",
        "spark.x": "2",
    }


@pytest.mark.parametrize(
    ("release", "status"), [("17.0.9", OK), ("21.0.1", WARNING), ("1.7.0_80", PROBLEM)]
)
def test_the_java_that_spark_would_start(tmp_path, monkeypatch, release, status):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{release}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = one(installation.java_of_spark(Installation(version="3.5.9")))
    assert (found.check, found.status) == ("java", status)
    assert release in found.found
    assert status == OK or "JAVA_HOME" in found.advice
    under_submit = Installation(environment={"PYSPARK_GATEWAY_PORT": "4711"})
    assert one(installation.java_of_spark(under_submit)).status == OK


def started(**changes: Any) -> dict[str, Any]:
    return {
        "master": "spark://a:7077",
        "version": "3.5.9",
        "java": "17.0.9",
        "single_host": False,
        "gpus_per_executor": 0.0,
        "encryption": [],
        "refusals": {},
        "is_dynamic": False,
        "is_restarted": False,
        "slots": 4,
        "num_tasks": 2,
        "stage": {"hosts": []},
        **changes,
    }


def test_a_session_that_the_launcher_would_take():
    found = {finding.check: finding for finding in SESSION.run(started())}
    assert {finding.status for finding in found.values()} == {OK}


TOO_FEW = "2 ranks need 2 task slots at once, and the cluster has 0: ask for at most 0 ranks."


def test_what_the_launcher_refuses_is_a_problem_in_its_words():
    found = one(session.slots(started(refusals={"slots": TOO_FEW}, slots=1)))
    assert (found.check, found.status) == ("spark.slots", PROBLEM)
    assert found.found == "2 ranks need 2 task slots at once, and the cluster has 0."
    assert found.advice == "Ask for at most 0 ranks."
    refusals = dict.fromkeys(("allocation", "encryption", "gpus"), "It is on. Set it to false.")
    found = [one for one in SESSION.run(started(refusals=refusals)) if one.status == PROBLEM]
    assert [one.check for one in found] == ["spark.allocation", "spark.encryption", "gpu.amounts"]
    assert {(one.found, one.advice) for one in found} == {("It is on.", "Set it to false.")}


@pytest.mark.parametrize(
    ("master", "mode", "attempts", "is_restarted"),
    [
        ("yarn", "cluster", None, True),
        ("yarn", "cluster", "2", True),
        ("yarn", "cluster", "1", False),
        ("yarn", "client", None, False),
        ("k8s://https://10.0.0.1:6443", "cluster", None, False),
    ],
)
def test_a_driver_that_yarn_would_start_again(master, mode, attempts, is_restarted):
    settings = {"spark.submit.deployMode": mode, "spark.yarn.maxAppAttempts": attempts}
    context = SimpleNamespace(master=master, _conf=settings)
    assert _is_restarted(context) is is_restarted
    found = session.yarn_attempts(started(is_restarted=is_restarted))
    assert bool(found) is is_restarted
    if is_restarted:
        assert (found[0].check, found[0].status) == ("yarn.attempts", WARNING)
        assert "--conf spark.yarn.maxAppAttempts=1" in found[0].advice


def test_no_executors_where_gpus_are_asked_for():
    asked = started(slots=0, gpus_per_executor=1.0, refusals={"slots": TOO_FEW})
    found = one(session.slots(asked))
    assert found.status == PROBLEM
    assert "No executor has registered" in found.advice
    assert "discovery script lists GPUs" in found.advice


def test_encryption_on_one_host_is_no_matter():
    asked = started(encryption=["spark.ssl.enabled"], single_host=True)
    found = one(session.encryption(asked))
    assert (found.status, found.found) == (OK, "spark.ssl.enabled is true; all is on this host")


def test_executors_that_come_for_tasks_are_looked_at_and_too_few_are_a_warning():
    stage = {"hosts": [{"host": "a"}, {"host": "a"}], "tasks": 2}
    asked = started(is_dynamic=True, slots=0, stage=stage)
    found = one(session.allocation(asked))
    assert (found.status, found.found[:24]) == (OK, "dynamic allocation is on")
    assert one(session.slots(asked)).found.endswith("for which executors come with a run")
    assert one(session.executors(asked)).found == "2 on 1 host(s) ran a stage"
    too_few = one(session.executors(asked | {"num_tasks": 3}))
    assert too_few.status == WARNING
    assert "2 of 3 tasks had a slot in time" in too_few.found


def test_why_a_session_did_not_start_is_told_with_what_to_do():
    known = one(session.start({"error": "No space left on device", "output": []}))
    unknown = one(session.start({"error": "it ended", "output": ["Caused by: odd"]}))
    assert "a disk is full" in known.found
    assert "Make room" in known.advice
    assert "Caused by: odd" in unknown.found
    assert "start pyspark by hand" in unknown.advice


@pytest.mark.parametrize(
    ("stage", "check", "status"),
    [
        ({"python_error": "Executors cannot start x: no. Set PYSPARK_PYTHON."}, "python", PROBLEM),
        ({"error": "ExecutorLostFailure (executor 1 exited)"}, "executors", PROBLEM),
        ({"skipped": "there is no slot to run it in"}, "executors", "not checked"),
    ],
)
def test_why_executors_do_not_answer(stage, check, status):
    asked = started(stage=stage)
    found = one([*session.executors_python(asked), *session.executors(asked)])
    assert (found.check, found.status) == (f"spark.{check}", status)
    assert found.advice


@pytest.fixture
def shut_port():
    """A port at which nobody listens, and at which nobody else can begin to."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]


def test_a_master_at_whose_address_nobody_answers_is_named(shut_port):
    nobody = f"127.0.0.1:{shut_port}"
    for known in (
        Installation(master=f"spark://{nobody},b"),
        Installation(settings={"spark.master": f"spark://{nobody},b"}),
    ):
        found = one(installation.standalone_master(known))
        assert (found.check, found.status) == ("spark.master", PROBLEM)
        assert f"Nobody answers at {nobody} ([Errno 111] Connection refused) or b (" in found.found


def test_one_master_that_answers_will_do(shut_port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        master = f"spark://127.0.0.1:{shut_port},{address}"
        found = one(installation.standalone_master(Installation(master=master)))
    assert (found.status, found.found) == (OK, f"somebody answers at {address}")


@pytest.mark.parametrize("master", [None, "local[2]", "yarn", "k8s://https://h:6443"])
def test_other_masters_are_not_called(master):
    assert not installation.standalone_master(Installation(master=master))

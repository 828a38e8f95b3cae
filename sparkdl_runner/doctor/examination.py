"""From a question to a report: look at everything, then let the checks judge what was seen."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from typing import Any

# Each file of findings adds its checks to those of their kind when it is imported.
import sparkdl_runner.doctor.findings.gpus
import sparkdl_runner.doctor.findings.native
import sparkdl_runner.doctor.findings.network
import sparkdl_runner.doctor.findings.resources
import sparkdl_runner.doctor.findings.session  # noqa: F401
from sparkdl_runner.doctor import preflight, scripts, tracking_server
from sparkdl_runner.doctor.child import Child
from sparkdl_runner.doctor.findings import packages
from sparkdl_runner.doctor.findings.checks import (
    EXECUTOR,
    HOST,
    PYTHON,
    SESSION,
    START,
    Place,
    guarded,
)
from sparkdl_runner.doctor.findings.finding import PROBLEM, Finding, merged
from sparkdl_runner.doctor.installation import INSTALLATION, find_installation
from sparkdl_runner.doctor.meeting import WAIT_SECONDS
from sparkdl_runner.doctor.question import Question, is_for_a_cluster, unpack_seconds
from sparkdl_runner.doctor.report import Report
from sparkdl_runner.launch.config import RunConfig

HOST_SECONDS = 45.0
"""How long looking at one host may take, the loading of native libraries included."""
START_SECONDS = 90.0 + RunConfig().slot_wait_seconds
"""How long a session may take to start, with its executors."""
STAGE_SECONDS = 90.0
"""How long the stage may take that looks at them."""

SERVERLESS = (
    "Give a negative num_proc: -2 is a rank on each of two GPUs. Write tables for them into a "
    "volume, by write_conversion(df, '/Volumes/…'), and checkpoints too; the MLflow run is in the "
    "workspace. See docs/clusters.md, AI Runtime."
)
"""What fits AI Runtime."""


def examine(question: Question) -> Report:
    """Looks at the driver, at Spark, at every executor and at MLflow's server.

    What it finds is never an exception: a check that fails itself is a finding as well.
    """
    started = time.monotonic()
    findings = guarded("doctor", lambda: _look_at_everything(question))
    return Report(
        findings=merged(findings),
        num_proc=question.num_proc,
        seconds=time.monotonic() - started,
    )


def _look_at_everything(question: Question) -> list[Finding]:
    installed = find_installation(question)
    on_cluster = is_for_a_cluster(question, installed.settings)
    request = host_request(question, installed.settings)
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        server = pool.submit(
            guarded,
            tracking_server.CHECK,
            lambda: tracking_server.check_server(question.tracking_uri, on_cluster=on_cluster),
        )
        deadline = time.monotonic() + HOST_SECONDS
        folders = {
            url: stack.enter_context(closing(keep_file(url, request["marker"])))
            for url in question.folders
        }
        host = Child([sys.executable, "-c", scripts.text_of("host")], request)
        stack.callback(host.close)
        findings = INSTALLATION.run(installed)
        if broken := [finding.check for finding in findings if finding.status == PROBLEM]:
            session: dict[str, Any] = {"skipped": f"see {' and '.join(broken)}"}
        elif installed.is_serverless:
            session = {
                "skipped": "this is serverless compute of Databricks, whose ranks are processes of "
                "this machine",
                "advice": SERVERLESS,
            }
        else:
            session = _look_at_session(question, request, installed.settings)
        facts = host.answer(deadline + 15, words=2)
        late = f"no answer came within {HOST_SECONDS:g} s"
        facts["folders"] = {url: file.answer(deadline, late=late) for url, file in folders.items()}
        driver = Place(
            facts=facts,
            question=question,
            on_cluster=not session["single_host"] if "single_host" in session else on_cluster,
            spark_version=installed.version,
        )
        findings += judge(driver, session)
        if "master" in session:
            measured = guarded(
                preflight.CHECK, lambda: preflight.measure(question, session["master"])
            )
            findings += measured
        return findings + server.result()


def keep_file(url: str, name: str) -> Child:
    """Starts a process that keeps a file in a folder until it is closed, for executors to see."""
    asked = json.dumps({"url": url, "name": name, "look_for": None})
    return Child([sys.executable, "-c", scripts.text_of("folder"), asked])


def host_request(question: Question, settings: Mapping[str, str]) -> dict[str, Any]:
    """The request to ``scripts/host.py`` on the driver."""
    directories = {}
    if os.environ.get("TMPDIR"):
        directories[os.environ["TMPDIR"]] = "temporary files (TMPDIR)"
    # As in Spark, whose Java ignores TMPDIR.
    local = os.environ.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir") or "/tmp"  # noqa: S108
    for path in local.split(","):
        directories[path] = "Spark's local files (spark.local.dir)"
    return {
        "scripts": {"native": scripts.text_of("native")},
        "native": ["torch", *(name for name in question.backends if name != "torch")],
        "directories": directories,
        "folders": [],
        "marker": f".sparkdl-runner-doctor-{secrets.token_hex(8)}",
        "servers": [],
        "seconds": HOST_SECONDS,
    }


def _look_at_session(
    question: Question, request: dict[str, Any], settings: Mapping[str, str]
) -> dict[str, Any]:
    """Starts a Spark session, whose executors describe their hosts as ``request`` says."""
    child = Child(
        [sys.executable, "-m", "sparkdl_runner.doctor.session"],
        {"question": asdict(question), "host": request},
        # A JVM that lives for seconds is not worth optimising its code for.
        {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", **os.environ},
    )
    with closing(child):
        return answers_of_session(child, settings)


def answers_of_session(child: Child, settings: Mapping[str, str]) -> dict[str, Any]:
    """The facts about a session of these settings, and about its executors (``stage``).

    If the session did not start, ``error`` says why, and ``output`` has what Spark wrote.
    """
    answer = child.answer(time.monotonic() + START_SECONDS + unpack_seconds(settings))
    session: dict[str, Any] = answer.get("session", answer)
    if "error" in session:
        return {**session, "output": child.output()}
    waits = WAIT_SECONDS if session["is_dynamic"] else 0.0
    answer = child.answer(time.monotonic() + STAGE_SECONDS + waits)
    if "error" in answer:
        tasks = session["num_tasks"] if session["is_dynamic"] else session["slots"]
        answer["error"] += f", for a stage of {tasks} tasks"
    return {**session, "stage": answer.get("stage", answer)}


def judge(driver: Place, session: dict[str, Any]) -> list[Finding]:
    """Makes findings of the observations, in the order of the report."""
    findings = packages.host_was_seen(driver)
    if driver.was_seen:
        findings += PYTHON.run(driver) + HOST.run(driver)
    findings += START.run(session)
    if "master" in session:
        findings += SESSION.run(session)
        for executor in _executors(driver, session):
            findings += _judge_executor(executor)
    return findings


def _executors(driver: Place, session: dict[str, Any]) -> list[Place]:
    """The observations of each executor."""
    executors = [
        replace(
            driver,
            facts=answer.get("facts") or {},
            answer=answer,
            driver=driver.facts if driver.was_seen else {},
            spark_gives_gpus=session["gpus_per_executor"] > 0,
        )
        for answer in session["stage"].get("hosts", [])
    ]
    some_have_gpus = any(executor.was_seen and executor.has_gpus for executor in executors)
    return [replace(executor, some_have_gpus=some_have_gpus) for executor in executors]


def _judge_executor(executor: Place) -> list[Finding]:
    findings = EXECUTOR.run(executor, executor.name)
    # In a Python that cannot run ranks anyway, what else is missing tells nothing more.
    if executor.was_seen and "sparkdl_runner" in executor.answer:
        findings += PYTHON.run(executor, executor.name)
    if executor.was_seen and executor.on_cluster:
        findings += HOST.run(executor, executor.name)
    return findings

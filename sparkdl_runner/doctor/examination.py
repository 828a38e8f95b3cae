"""From a question to a report: look at everything, then let the checks judge what was seen."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

# Each file of findings adds its checks to those of their kind when it is imported.
import sparkdl_runner.doctor.findings.gpus
import sparkdl_runner.doctor.findings.native
import sparkdl_runner.doctor.findings.network
import sparkdl_runner.doctor.findings.resources
import sparkdl_runner.doctor.findings.session
import sparkdl_runner.doctor.standalone_master  # noqa: F401
from sparkdl_runner.doctor import observation, tracking_server
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
from sparkdl_runner.doctor.question import Question, is_for_a_cluster
from sparkdl_runner.doctor.report import Report


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
    request = observation.host_request(question, installed.settings)
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        uri = question.tracking_uri
        server = pool.submit(
            guarded,
            tracking_server.CHECK,
            lambda: tracking_server.check_server(uri, on_cluster=on_cluster),
        )
        deadline = time.monotonic() + observation.HOST_SECONDS + 15
        host = observation.start_host_script(request)
        stack.callback(host.close)
        found = INSTALLATION.run(installed)
        if broken := [finding.check for finding in found if finding.status == PROBLEM]:
            session: dict[str, Any] = {"skipped": f"see {' and '.join(broken)}"}
        else:
            child = observation.start_session(question, request)
            stack.callback(child.close)
            session = observation.answers_of_session(child, installed.settings)
            session["num_proc"] = question.num_proc
        driver = Place(
            facts=observation.facts_of(host, deadline),
            question=question,
            on_cluster=not session["single_host"] if "single_host" in session else on_cluster,
            spark_version=installed.version,
        )
        return found + judge(driver, session) + server.result()


def judge(driver: Place, session: dict[str, Any]) -> list[Finding]:
    """Makes findings of the observations, in the order of the report."""
    found = packages.host_was_seen(driver)
    if driver.was_seen:
        found += PYTHON.run(driver) + HOST.run(driver)
    found += START.run(session)
    if "master" in session:
        found += SESSION.run(session)
        for executor in _executors(driver, session):
            found += _judge_executor(executor)
    return found


def _executors(driver: Place, session: dict[str, Any]) -> list[Place]:
    """The observations of each executor."""
    found = [
        replace(
            driver,
            facts=answer.get("facts") or {},
            answer=answer,
            driver=driver.facts if driver.was_seen else {},
            spark_gives_gpus=session["gpus_per_executor"] > 0,
        )
        for answer in session["stage"].get("hosts", [])
    ]
    some_have_gpus = any(one.was_seen and one.has_gpus for one in found)
    return [replace(one, some_have_gpus=some_have_gpus) for one in found]


def _judge_executor(executor: Place) -> list[Finding]:
    found = EXECUTOR.run(executor, executor.name)
    # In a Python that cannot run ranks anyway, what else is missing tells nothing more.
    if executor.was_seen and "sparkdl_runner" in executor.answer:
        found += PYTHON.run(executor, executor.name)
    if executor.was_seen and executor.on_cluster:
        found += HOST.run(executor, executor.name)
    return found

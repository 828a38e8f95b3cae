"""From a question to a report: look at everything, then judge what was seen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from sparkdl_runner.doctor import tracking_server
from sparkdl_runner.doctor.findings import native as native_findings
from sparkdl_runner.doctor.findings import network as network_findings
from sparkdl_runner.doctor.findings import packages as package_findings
from sparkdl_runner.doctor.findings import resources as resource_findings
from sparkdl_runner.doctor.findings import session as session_findings
from sparkdl_runner.doctor.findings.finding import (
    DRIVER,
    PROBLEM,
    Finding,
    guarded,
    merged,
    not_checked,
)
from sparkdl_runner.doctor.observation import Observation, observe
from sparkdl_runner.doctor.question import Question
from sparkdl_runner.doctor.report import Report


def examine(question: Question) -> Report:
    """Looks at the driver, at Spark, at every executor and at MLflow's server.

    What it finds is never an exception: a check that fails itself is a finding as well.
    """
    started = time.monotonic()
    findings = guarded("doctor", lambda: judge(question, observe(question)))
    return Report(
        findings=merged(findings),
        num_proc=question.num_proc,
        seconds=time.monotonic() - started,
    )


def judge(question: Question, seen: Observation) -> list[Finding]:
    """Makes findings of what was seen, in the order in which they are told."""
    found = list(seen.installation)
    if "error" in seen.driver:
        found.append(not_checked("host", f"the driver's host: {seen.driver['error']}"))
    else:
        needs_gpus = question.gpus and not seen.on_cluster
        found += _judge_packages(question, seen, seen.driver, DRIVER)
        found += _judge_host(seen, seen.driver, DRIVER, gpus_expected=needs_gpus)
        found += guarded(
            "mlflow.version", lambda: [package_findings.judge_mlflow(seen.driver, DRIVER)]
        )
    found += _judge_session(question, seen)
    return found + seen.server


def _judge_session(question: Question, seen: Observation) -> list[Finding]:
    session = seen.session
    if session is None:
        named = [finding.check for finding in seen.installation if finding.status == PROBLEM]
        return [not_checked("spark.start", f"no session was started: see {' and '.join(named)}")]
    found = guarded("spark.start", lambda: session_findings.judge_start(session, seen.words))
    if "error" in session:
        return found
    found += guarded(
        "spark.slots",
        lambda: session_findings.judge_settings(
            session, num_proc=question.num_proc, backends=question.backends
        ),
    )
    found += guarded("spark.executors", lambda: session_findings.judge_stage(seen.stage, session))
    answers = seen.stage.get("hosts", [])
    if answers:
        found += guarded(
            "network.executors",
            lambda: network_findings.judge_network(answers, single_host=session["single_host"]),
        )
        found += guarded("spark.executors", lambda: _judge_executors(question, seen, answers))
    return found


def _judge_executors(
    question: Question, seen: Observation, answers: list[dict[str, Any]]
) -> Iterator[Finding]:
    session = seen.session or {}
    asked = float(session["settings"].get("spark.executor.resource.gpu.amount") or 0) > 0
    hosts = [answer["facts"] for answer in answers if "error" not in _facts(answer)]
    some_have_gpus = any(native_findings.has_gpus(facts) for facts in hosts)
    for answer in answers:
        where = network_findings.place_of(answer, single_host=not seen.on_cluster)
        facts = _facts(answer)
        if "error" in facts and answer.get("facts"):
            yield not_checked("host", f"its host was not looked at: {facts['error']}", where)
        if "error" not in seen.driver:
            known = None if "error" in facts else facts
            yield from package_findings.judge_same(seen.driver, answer, known, where)
        if seen.on_cluster:
            ahead = answer["driver"].get("seconds_ahead")
            yield network_findings.judge_clock(ahead, where)
        if "error" in facts:
            continue
        # In a Python that cannot run ranks anyway, what else is missing tells nothing more.
        if "sparkdl_runner" in answer:
            yield from _judge_packages(question, seen, facts, where)
        if seen.on_cluster:
            yield from _judge_host(
                seen,
                facts,
                where,
                gpus_expected=question.gpus or asked,
                gpus_given=answer.get("gpus_given") if asked else None,
                others_have_gpus=some_have_gpus,
            )
        for url, error in facts["servers"].items():
            yield tracking_server.judge_reach(error, url, where)


def _facts(answer: dict[str, Any]) -> dict[str, Any]:
    return answer.get("facts") or {"error": "it is the driver's"}


def _judge_packages(
    question: Question, seen: Observation, facts: dict[str, Any], where: str
) -> list[Finding]:
    """What a Python has installed."""
    found = guarded("python", lambda: package_findings.judge_python(facts, where))
    found += guarded(
        "arrow", lambda: package_findings.judge_arrow(facts, seen.spark_version, where)
    )
    found += guarded("torch", lambda: native_findings.judge_torch(facts, where))
    if "horovod" in question.backends:
        found += guarded(
            "horovod",
            lambda: native_findings.judge_horovod(
                facts,
                where,
                is_wanted=question.horovod_is_wanted,
                wants_gpus=question.gpus or native_findings.has_gpus(facts),
            ),
        )
    return found


def _judge_host(
    seen: Observation,
    facts: dict[str, Any],
    where: str,
    *,
    gpus_expected: bool,
    gpus_given: Sequence[str] | None = None,
    others_have_gpus: bool = False,
) -> list[Finding]:
    """What a host is like."""
    found = guarded(
        "gpu",
        lambda: native_findings.judge_gpus(
            facts,
            where,
            expected=gpus_expected,
            given=gpus_given,
            others_have=others_have_gpus,
        ),
    )
    found += guarded(
        "network.name",
        lambda: network_findings.judge_name(facts, where, single_host=not seen.on_cluster),
    )
    found += guarded("disk", lambda: resource_findings.judge_space(facts, where))
    found += guarded("limits", lambda: resource_findings.judge_limits(facts, where))
    found += guarded("folder", lambda: resource_findings.judge_folders(facts, where))
    return found

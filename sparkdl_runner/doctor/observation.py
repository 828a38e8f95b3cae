"""Looks at the driver, Spark, every executor and MLflow's server, side by side where it can."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sparkdl_runner.config import RunConfig
from sparkdl_runner.doctor import installation, java, scripts, tracking_server
from sparkdl_runner.doctor.child import Child, NoAnswerError
from sparkdl_runner.doctor.findings.finding import PROBLEM, Finding, guarded, ok
from sparkdl_runner.doctor.question import Question, is_for_a_cluster, is_under_submit

HOST_SECONDS = 45.0
"""How long looking at one host may take, the loading of native libraries included."""
EXECUTOR_SECONDS = RunConfig().slot_wait_seconds
"""How long executors may take to register: as long as a run would wait for them."""
START_SECONDS = 90.0 + EXECUTOR_SECONDS
"""How long a session may take to start, with its executors."""
STAGE_SECONDS = 90.0
"""How long the stage may take that looks at them."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that was seen, before it is judged.

    Attributes:
        spark_version: The installed pyspark's; empty if there is none.
        on_cluster: Whether executors are other processes than the driver's.
        installation: What was found of Java and Spark on the driver, before a session.
        driver: The driver's facts (see ``scripts/host.py``), or ``{"error": …}``.
        session: What the session says of itself, or ``{"error": …}``; None if none was started.
        stage: What the executors say: ``hosts``, ``error`` or ``skipped``.
        words: What Spark wrote, for where it did not start.
        server: What was found of MLflow's server.
    """

    spark_version: str
    on_cluster: bool
    installation: list[Finding]
    driver: dict[str, Any]
    session: dict[str, Any] | None
    stage: dict[str, Any]
    words: list[str]
    server: list[Finding]


def observe(question: Question) -> Observation:
    """Looks at everything that the question is about."""
    known = installation.find_installation()
    settings = {**installation.defaults(known, os.environ), **question.conf}
    on_cluster = is_for_a_cluster(question, settings)
    request = _host_request(question, settings)
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        server = pool.submit(
            guarded,
            "mlflow.server",
            lambda: tracking_server.check_server(question.tracking_uri, on_cluster=on_cluster),
        )
        deadline = time.monotonic() + HOST_SECONDS + 15
        host = Child([sys.executable, "-c", scripts.text_of("host")], request)
        stack.callback(host.close)
        found = _look_at_installation(question, known, settings)
        session, stage, words = None, {"skipped": "there is no session"}, []
        child = None
        if not any(finding.status == PROBLEM for finding in found):
            child = Child(
                [sys.executable, "-m", "sparkdl_runner.doctor.session"],
                _session_request(question, request),
                # A JVM that lives for seconds is not worth optimising its code for.
                {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", **os.environ},
            )
            stack.callback(child.close)
            session, stage = _hear(child)
            words = child.words()
        driver = _answer_of(host, deadline)
        return Observation(
            spark_version=known.version,
            on_cluster=on_cluster if session is None else not session.get("single_host", False),
            installation=found,
            driver=driver,
            session=session,
            stage=stage,
            words=words,
            server=server.result(),
        )


def _look_at_installation(
    question: Question, known: installation.Installation, settings: Mapping[str, str]
) -> list[Finding]:
    found = guarded("spark.version", lambda: installation.check_version(known))
    if is_under_submit():
        found.append(ok("java", "spark-submit has started it"))
    else:
        found += guarded("java", lambda: java.check_java(known.version, known.home))
        found += guarded("spark.home", lambda: installation.check_home(known))
    found += guarded("spark.connect", lambda: installation.check_connect(question.master, settings))
    return found


def _answer_of(host: Child, deadline: float) -> dict[str, Any]:
    try:
        return host.answer(deadline)
    except NoAnswerError as error:
        return {"error": "; ".join([str(error), *host.words()[-2:]])}


def _hear(child: Child) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the session says, and what its executors say."""
    try:
        session = child.answer(time.monotonic() + START_SECONDS)["session"]
    except NoAnswerError as error:
        session = {"error": str(error)}
    if "error" in session:
        return session, {"skipped": "there is no session"}
    try:
        return session, child.answer(time.monotonic() + STAGE_SECONDS)["stage"]
    except NoAnswerError as error:
        return session, {"error": f"{error}, for a barrier stage of {session['slots']} tasks"}


def _host_request(question: Question, settings: Mapping[str, str]) -> dict[str, Any]:
    """What ``scripts/host.py`` is asked on the driver."""
    directories = {}
    if os.environ.get("TMPDIR"):
        directories[os.environ["TMPDIR"]] = "temporary files (TMPDIR)"
    # As in Spark, whose Java does not look at TMPDIR.
    local = os.environ.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir") or "/tmp"  # noqa: S108
    for path in local.split(","):
        directories[path] = "Spark's local files (spark.local.dir)"
    return {
        "scripts": {
            name: scripts.text_of(name) for name in ("native", "petastorm_readers", "folder")
        },
        "native": ["torch", *(name for name in question.backends if name == "horovod")],
        "directories": directories,
        "folders": list(question.folders),
        "marker": f".sparkdl-runner-doctor-{secrets.token_hex(8)}",
        "servers": [],
        "seconds": HOST_SECONDS,
        "is_driver": True,
    }


def _session_request(question: Question, host_request: dict[str, Any]) -> dict[str, Any]:
    page = tracking_server.health_page(question.tracking_uri)
    servers: Sequence[str] = [page] if page else []
    return {
        "np": question.num_proc,
        "master": question.master,
        "conf": list(question.conf.items()),
        "executor_seconds": EXECUTOR_SECONDS,
        "script": scripts.text_of("host"),
        # The driver's own places need not be an executor's.
        "host_request": {
            **host_request,
            "directories": {},
            "servers": servers,
            "is_driver": False,
        },
    }

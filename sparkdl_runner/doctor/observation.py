"""The processes that look at the driver's host and at a Spark session, and what they are asked."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl_runner.doctor import scripts, tracking_server
from sparkdl_runner.doctor.child import Child, NoAnswerError
from sparkdl_runner.doctor.question import YARN_ATTEMPTS, Question, unpack_seconds
from sparkdl_runner.launch.config import RunConfig

HOST_SECONDS = 45.0
"""How long looking at one host may take, the loading of native libraries included."""
START_SECONDS = 90.0 + RunConfig().slot_wait_seconds
"""How long a session may take to start, with its executors."""
STAGE_SECONDS = 90.0
"""How long the stage may take that looks at them."""


def start_host_script(request: dict[str, Any]) -> Child:
    """Starts the script that describes this host; see ``host_request``."""
    return Child([sys.executable, "-c", scripts.text_of("host")], request)


def start_session(question: Question, request: dict[str, Any]) -> Child:
    """Starts a Spark session, which has executors describe their hosts as ``request`` says."""
    return Child(
        [sys.executable, "-m", "sparkdl_runner.doctor.session"],
        _session_request(question, request),
        # A JVM that lives for seconds is not worth optimising its code for.
        {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", **os.environ},
    )


def facts_of(host: Child, deadline: float) -> dict[str, Any]:
    """The script's facts about the host, or ``{"error": …}``."""
    try:
        return host.answer(deadline)
    except NoAnswerError as error:
        return {"error": "; ".join([str(error), *host.output()[-2:]])}


def answers_of_session(child: Child, settings: Mapping[str, str]) -> dict[str, Any]:
    """The facts about a session of these settings, and about its executors (``stage``).

    Where it did not start there is an ``error`` and what Spark wrote (``output``).
    """
    seconds = START_SECONDS + unpack_seconds(settings)
    try:
        session = child.answer(time.monotonic() + seconds)["session"]
    except NoAnswerError as error:
        session = {"error": str(error)}
    if "error" in session:
        return {**session, "output": child.output()}
    try:
        stage = child.answer(time.monotonic() + STAGE_SECONDS)["stage"]
    except NoAnswerError as error:
        stage = {"error": f"{error}, for a barrier stage of {session['slots']} tasks"}
    return {**session, "stage": stage}


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
        "scripts": {name: scripts.text_of(name) for name in ("native", "folder")},
        "native": ["torch", *(name for name in question.backends if name != "torch")],
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
    # A master that comes when this session was given up finds no driver: YARN is to start no other.
    once = [(YARN_ATTEMPTS, "1")] if question.master == "yarn" else []
    return {
        "np": question.num_proc,
        "master": question.master,
        "conf": [*once, *question.conf.items()],
        "backend": question.backends[0],
        "script": scripts.text_of("host"),
        # The driver's own places need not be an executor's.
        "host_request": {
            **host_request,
            "servers": servers,
            "is_driver": False,
        },
    }

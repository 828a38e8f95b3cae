"""Is MLflow's server there, does it know us, and does its version go with the client's?

``python -m sparkdl_runner.doctor.tracking_server`` asks it, as a run would before it starts: in a
process of its own, since importing MLflow takes seconds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.doctor.child import Child
from sparkdl_runner.doctor.findings.checks import EXECUTOR, Place
from sparkdl_runner.doctor.findings.finding import (
    Finding,
    not_checked,
    ok,
    problem,
    refused,
    warning,
)
from sparkdl_runner.doctor.findings.versions import is_older, numbers
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.tracking.run.opening.store import check_store
from sparkdl_runner.tracking.run.server_calls import WITHOUT, ServerCalls
from sparkdl_runner.tracking.settings import Tracking

CHECK = "mlflow.server"
ANSWER_SECONDS = 10
_MOST_VERSION_BYTES = 100
# Importing MLflow and some answers, on a busy host.
CHILD_SECONDS = 120.0
# Servers before it have known security holes; clients of any version are served.
LEAST_SERVER = "3.11"


def check_server(uri: str | None, *, on_cluster: bool) -> Finding:
    """Looks at the place where runs would be kept.

    Args:
        uri: MLflow's tracking URI; None if none is set.
        on_cluster: Whether ranks run on other hosts.
    """
    if not uri:
        return not_checked(
            "no tracking URI is set.",
            advice="Set MLFLOW_TRACKING_URI, or give --tracking-uri, to have the server looked at.",
        )
    shown, scheme = Redactor()(uri), urlsplit(uri).scheme
    if scheme in ("", "file", "sqlite") and uri != "databricks":
        if not on_cluster:
            return ok(f"none: runs are kept in {shown}")
        return warning(
            f"Runs are kept in {shown}, on the driver's own disk.",
            expected="a server that every host reaches",
            advice="Start one (mlflow server) and set MLFLOW_TRACKING_URI to it: ranks on other "
            "hosts can send their models and files nowhere else.",
        )
    if scheme not in ("", "http", "https", "databricks"):
        return not_checked(f"{shown} is no web server; only a run's own MLflow asks it.")
    if importlib.util.find_spec("mlflow") is None:
        return not_checked("MLflow is not installed, and only it can ask the server.")
    return judge(shown, _asked_by_a_child(uri))


def ask(uri: str) -> dict[str, Any]:
    """Asks a server as a run would before it starts.

    Returns:
        ``version``, empty where the server does not tell it, or why a run would not start
        (``refusal``).
    """
    settings = Tracking(tracking_uri=uri)
    try:
        check_store(settings)
        import mlflow

        call = ServerCalls(uri=uri, timeout_seconds=settings.opening_timeout_seconds)
        client = call(lambda: mlflow.MlflowClient(tracking_uri=uri), "make a client")
        call(lambda: client.search_experiments(max_results=1), "list experiments")
        return {"version": call(lambda: _version(uri), "tell its version")}
    except LaunchError as error:
        return {"refusal": str(error).removesuffix(f" To {WITHOUT}")}


def health_page(uri: str | None) -> str | None:
    """The page by which executors see whether the server is there; None if it has none."""
    parts = urlsplit(uri or "")
    if parts.scheme not in ("http", "https"):
        return None
    place = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return f"{place.rstrip('/')}/health"


@EXECUTOR(CHECK, expected="the server answers on every host; rank 0 sends it models and files")
def reach(executor: Place) -> Iterator[Finding]:
    """Whether an executor reaches the server."""
    for url, error in executor.facts.get("servers", {}).items():
        if error is None:
            yield ok(f"reaches {Redactor()(url)}")
        else:
            yield problem(
                f"This host does not reach {Redactor()(url)}: {error}.",
                advice="Open the way from the executors to the server, and name it by an address "
                "that holds there too (not localhost).",
            )


def _asked_by_a_child(uri: str) -> dict[str, Any]:
    child = Child(
        [sys.executable, "-m", "sparkdl_runner.doctor.tracking_server"],
        uri,
        {
            **os.environ,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": str(ANSWER_SECONDS),
        },
    )
    with closing(child):
        return child.answer(time.monotonic() + CHILD_SECONDS, words=1)


def judge(shown: str, answer: dict[str, Any]) -> Finding:
    """Makes a finding of what ``ask`` returned, or of the ``error`` that kept it from returning."""
    if "error" in answer:
        return not_checked(f"MLflow could not be loaded to ask {shown}: {answer['error']}.")
    if "refusal" in answer:
        expected = "an MLflow server that answers, and takes these credentials"
        return replace(refused(answer["refusal"]), expected=expected)
    version = answer["version"]
    if not numbers(version):
        return ok(f"{shown} answers")
    text = f"{shown} answers, MLflow {version}"
    if not is_older(version, LEAST_SERVER):
        return ok(text)
    return (problem if is_older(version, "3") else warning)(
        f"{text}, which is too old for what clients of today send it.",
        expected=f"MLflow {LEAST_SERVER} or later on the server",
        advice=f"Upgrade the server: pip install 'mlflow>={LEAST_SERVER}', mlflow db upgrade, then "
        "restart it; earlier ones have known security holes (CVE-2026-2614, CVE-2026-4137).",
    )


def _version(uri: str) -> str:
    from mlflow.tracking._tracking_service.utils import _get_store
    from mlflow.utils.rest_utils import http_request

    store: Any = _get_store(uri)
    answer = http_request(
        store.get_host_creds(),
        "/version",
        "GET",
        max_retries=0,
        timeout=ANSWER_SECONDS,
        stream=True,
    )
    with answer:
        content: bytes = next(answer.iter_content(_MOST_VERSION_BYTES), b"")
    return content.decode(errors="replace").strip() if answer.status_code == 200 else ""


if __name__ == "__main__":
    print(json.dumps(ask(json.loads(sys.stdin.readline()))), flush=True)

"""Is MLflow's server there, does it know us, and does its version go with the client's?

Asks by HTTP alone: importing MLflow takes seconds, and doctor must work where it is broken.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from sparkdl_runner.doctor.findings.finding import Finding, not_checked, ok, problem, warning
from sparkdl_runner.doctor.findings.versions import is_older, numbers
from sparkdl_runner.redaction import Redactor

CHECK = "mlflow.server"
SECONDS = 4.0
# Servers before it have known holes; of a client, nobody asks.
LEAST_SERVER = "3.11"
_MOST_BYTES = 100_000
_SEARCH = "/api/2.0/mlflow/experiments/search"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A login page elsewhere is no MLflow, and must not be sent our credentials."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class _Answer:
    status: int = 0
    text: str = ""
    error: str = ""


def check_server(
    uri: str | None, *, on_cluster: bool | None, environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Looks at the place where runs would be kept.

    Args:
        uri: MLflow's tracking URI; None if none is set.
        on_cluster: Whether ranks run on other hosts; None if that is not known.
        environment: Where credentials are.
    """
    if not uri:
        yield not_checked(
            CHECK,
            "no tracking URI is set.",
            advice="Set MLFLOW_TRACKING_URI, or give --tracking-uri, to have the server looked at.",
        )
        return
    shown, where = Redactor()(uri), uri
    if uri == "databricks" or uri.startswith("databricks://"):
        where = environment.get("DATABRICKS_HOST", "")
        if not where:
            yield not_checked(
                CHECK,
                f"{shown}: the workspace is not named by DATABRICKS_HOST.",
                advice="Inside Databricks nothing need be set; elsewhere set DATABRICKS_HOST and "
                "DATABRICKS_TOKEN.",
            )
            return
    parts = urlsplit(where)
    if parts.scheme not in ("http", "https"):
        yield _judge_local(shown, parts, on_cluster)
        return
    yield from _ask(shown, parts, environment, is_databricks=where != uri)


def judge_reach(error: str | None, url: str, where: str) -> Finding:
    """Whether an executor reaches the server; rank 0 sends it models and files."""
    if error is None:
        return ok(CHECK, f"reaches {Redactor()(url)}", where)
    return problem(
        CHECK,
        f"This host does not reach {Redactor()(url)}: {error}.",
        expected="the server answers on every host; rank 0 sends it models and files",
        advice="Open the way from the executors to the server, and name it by an address that "
        "holds there too (not localhost).",
        where=where,
    )


def health_page(uri: str | None) -> str | None:
    """The page by which executors see whether the server is there; None if it has none."""
    parts = urlsplit(uri or "")
    if parts.scheme not in ("http", "https"):
        return None
    return _without_user(parts) + "/health"


def _ask(
    shown: str, parts: SplitResult, environment: Mapping[str, str], *, is_databricks: bool
) -> Iterator[Finding]:
    base, deadline = _without_user(parts), time.monotonic() + SECONDS
    headers = _credentials(parts, environment, is_databricks=is_databricks)
    answer = _request(base + _SEARCH, deadline, headers, environment, body={"max_results": 1})
    expected = "an MLflow server that answers"
    start = f"mlflow server --host … --port {parts.port or 80}"
    if answer.error or answer.status in (502, 503, 504):
        reason = answer.error or f"HTTP {answer.status}"
        yield problem(
            CHECK,
            f"{shown} does not answer: {reason}.",
            expected=expected,
            advice=f"Start the server ({start}), mend the address in MLFLOW_TRACKING_URI, or open "
            "the way to it; proxies come from HTTP_PROXY, HTTPS_PROXY and NO_PROXY.",
        )
        return
    if answer.status in (401, 403):
        yield problem(
            CHECK,
            f"{shown} answers, and refuses us: HTTP {answer.status}"
            f"{'' if headers else ' (no credentials are set)'}.",
            expected="credentials that the server takes",
            advice="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN (Databricks: DATABRICKS_TOKEN), in the driver's environment; on "
            "403 also look at MLFLOW_SERVER_ALLOWED_HOSTS of the server.",
        )
        return
    if answer.status != 200 or not _is_json(answer.text):
        yield problem(
            CHECK,
            f"{shown} answers, but not as MLflow does: HTTP {answer.status}.",
            expected=expected,
            advice="Look what serves that address: a login page or a proxy in between, another "
            "program, or a prefix that is missing in the URI.",
        )
        return
    version = _request(base + "/version", deadline, headers, environment).text.strip()
    yield _judge_version(shown, version)


def _judge_version(shown: str, version: str) -> Finding:
    least = LEAST_SERVER
    if not numbers(version):
        return ok(CHECK, f"{shown} answers")
    found = f"{shown} answers, MLflow {version}"
    if is_older(version, least):
        return (problem if is_older(version, "3") else warning)(
            CHECK,
            f"{found}, which is too old for what clients of today send it.",
            expected=f"MLflow {least} or later on the server",
            advice=f"Upgrade the server: pip install 'mlflow>={least}', mlflow db upgrade, then "
            "restart it; earlier ones have known security holes (CVE-2026-2614, CVE-2026-4137).",
        )
    return ok(CHECK, found)


def _judge_local(shown: str, parts: SplitResult, on_cluster: bool | None) -> Finding:
    if on_cluster and parts.scheme in ("", "file", "sqlite"):
        return warning(
            CHECK,
            f"Runs are kept in {shown}, on the driver's own disk.",
            expected="a server that every host reaches",
            advice="Start one (mlflow server) and set MLFLOW_TRACKING_URI to it: ranks on other "
            "hosts can send their models and files nowhere else.",
        )
    if parts.scheme in ("", "file", "sqlite"):
        return ok(CHECK, f"none: runs are kept in {shown}")
    return not_checked(CHECK, f"{shown} is no web server; only MLflow itself can ask it.")


def _request(
    url: str,
    deadline: float,
    headers: Mapping[str, str],
    environment: Mapping[str, str],
    body: dict[str, Any] | None = None,
) -> _Answer:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - the scheme is http or https
        url, data=data, headers={"Content-Type": "application/json", **headers}
    )
    left = max(0.5, deadline - time.monotonic())
    try:
        handlers: list[Any] = [_NoRedirect]
        if request.type == "https":
            handlers.append(urllib.request.HTTPSHandler(context=_trust(environment)))
        with urllib.request.build_opener(*handlers).open(request, timeout=left) as answer:
            return _Answer(
                status=answer.status, text=answer.read(_MOST_BYTES).decode("utf-8", "replace")
            )
    except urllib.error.HTTPError as error:
        error.close()
        return _Answer(status=error.code)
    except TimeoutError:
        return _Answer(error=f"nothing came within {left:.0f} s")
    except Exception as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return _Answer(error=f"nothing came within {left:.0f} s")
        return _Answer(error=str(reason)[:300] or type(error).__name__)


def _trust(environment: Mapping[str, str]) -> ssl.SSLContext:
    """Which certificates count, by the variables that MLflow's client and requests read."""
    names = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    bundle = next((environment[name] for name in names if environment.get(name)), None)
    is_folder = bundle is not None and os.path.isdir(bundle)
    context = ssl.create_default_context(
        cafile=None if is_folder else bundle, capath=bundle if is_folder else None
    )
    if environment.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client := environment.get("MLFLOW_TRACKING_CLIENT_CERT_PATH"):
        context.load_cert_chain(client)
    return context


def _credentials(
    parts: SplitResult, environment: Mapping[str, str], *, is_databricks: bool
) -> dict[str, str]:
    token = environment.get("DATABRICKS_TOKEN" if is_databricks else "MLFLOW_TRACKING_TOKEN")
    user = environment.get("MLFLOW_TRACKING_USERNAME") or unquote(parts.username or "")
    password = environment.get("MLFLOW_TRACKING_PASSWORD") or unquote(parts.password or "")
    if user and password and not is_databricks:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def _without_user(parts: SplitResult) -> str:
    return parts._replace(
        netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/"), query="", fragment=""
    ).geturl()


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False

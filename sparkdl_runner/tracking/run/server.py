"""The tracking server, or the database or folder in its place: its health, and writing to it."""

from __future__ import annotations

import inspect
import os
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.tracking.entries import Entry
from sparkdl_runner.tracking.run.server_calls import TookTooLongError, reason_of, within

REQUEST_SECONDS = 10.0
# A limit of requests is for each byte that comes; this one is for a whole answer.
_ANSWER_SECONDS = 3 * REQUEST_SECONDS
_SHOWN_CHARACTERS = 500
# The errors of requests say more than ours: they come first.
_GRACE_SECONDS = 0.5
# A server that is waited for may take so long even when time is nearly up.
_LEAST_SECONDS = 0.5
_REMOTE = ("http", "https")
_TRY_AGAIN = (401, 403, 404, 408, 425, 429, 502, 503, 504)


class ServerUnreachableError(Exception):
    """Entries did not arrive; trying again may help."""


class ServerFailedError(ServerUnreachableError):
    """The server is there, but it failed or took too long."""


class RefusedError(Exception):
    """Entries arrived and are invalid; trying again is of no use."""


class TrackingServer:
    """One tracking URI, and one run there.

    Args:
        uri: MLflow's tracking URI.
        run_id: The run.
    """

    def __init__(self, uri: str, run_id: str) -> None:
        self._uri = uri
        self._run_id = run_id
        self._store: Any = None

    def log(self, entries: list[Entry]) -> None:
        """Adds metrics, parameters and tags to the run, all or none; at most 1000.

        With a server, this is one request to its documented ``runs/log-batch``: MLflow's own client
        would repeat it for minutes, past the time that anybody waits.

        Raises:
            ServerUnreachableError: It is worth trying again.
            RefusedError: It is not.
        """
        if self._store is None:
            self._store = _open_store(self._uri)
        if hasattr(self._store, "get_host_creds"):
            self._post(entries)
        else:
            self._write(entries)

    def _post(self, entries: list[Entry]) -> None:
        from mlflow.utils.rest_utils import http_request

        body: dict[str, Any] = {"run_id": self._run_id, "metrics": [], "params": [], "tags": []}
        for kind, key, value, *more in entries:
            if kind == "metric":
                at, step, extra = more
                number = value if abs(value) < float("inf") else _PROTO_NUMBERS[str(value)]
                body["metrics"].append(
                    {"key": key, "value": number, "timestamp": at, "step": step, **extra}
                )
            else:
                body[f"{kind}s"].append({"key": key, "value": value})
        options: dict[str, Any] = {}
        if "retry_timeout_seconds" in inspect.signature(http_request).parameters:  # since MLflow 3
            options["retry_timeout_seconds"] = REQUEST_SECONDS

        def ask() -> tuple[int, str]:
            return _short(
                http_request(
                    host_creds=self._store.get_host_creds(),
                    endpoint="/api/2.0/mlflow/runs/log-batch",
                    method="POST",
                    json=body,
                    max_retries=0,
                    timeout=REQUEST_SECONDS,
                    raise_on_status=False,
                    stream=True,
                    **options,
                )
            )

        try:
            code, text = within(ask, _ANSWER_SECONDS)
        except TookTooLongError as error:
            raise ServerFailedError(f"no whole answer in {_ANSWER_SECONDS:g} s") from error
        except Exception as error:  # MLflow wraps those of requests, and has no narrower kind.
            origin = _origin(error)
            kind = ServerFailedError if isinstance(origin, TimeoutError) else ServerUnreachableError
            raise kind(reason_of(origin)) from error
        if code == 200:
            return
        told = f"HTTP {code}: {text}"
        # Authentication and not-found errors may be transient (a rotated token, a server that
        # restarts), and a gateway answers for a server that is down.
        if code in _TRY_AGAIN:
            raise ServerUnreachableError(told)
        if code >= 500:
            raise ServerFailedError(told)
        raise RefusedError(told)

    def _write(self, entries: list[Entry]) -> None:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException

        metrics, params, tags = [], [], []
        for kind, key, value, *more in entries:
            if kind == "metric":
                at, step, extra = more
                metrics.append(Metric(key, value, at, step, **extra))
            elif kind == "param":
                params.append(Param(key, value))
            else:
                tags.append(RunTag(key, value))
        try:
            self._store.log_batch(self._run_id, metrics, params, tags)
        except MlflowException as error:
            if error.error_code == "INVALID_PARAMETER_VALUE":
                raise RefusedError(reason_of(error)) from error
            raise ServerFailedError(reason_of(error)) from error
        except Exception as error:  # A database has errors of its own: locked, gone, full.
            raise ServerUnreachableError(reason_of(error)) from error


def _no_target(resp: Any) -> str | None:
    """Follows no redirection."""
    return None


def _short(response: Any) -> tuple[int, str]:
    """The status of an answer whose body has not been read, and the beginning of its text."""
    with response:
        if response.status_code == 200:
            return 200, ""
        # Small pieces: each may be packed a thousandfold.
        content = next(response.iter_content(4 * _SHOWN_CHARACTERS), b"")
        return response.status_code, content.decode(errors="replace")[:_SHOWN_CHARACTERS]


# JSON has no such numbers; protobuf's JSON writes them so.
_PROTO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def is_remote(uri: str) -> bool:
    """Whether hosts other than the driver's can reach the store."""
    return is_databricks(uri) or urlsplit(uri).scheme not in ("", "file", "sqlite")


def why_unreachable(uri: str, timeout_seconds: float = REQUEST_SECONDS) -> str | None:
    """Asks a server of MLflow's whether it is there.

    Returns:
        What is wrong, in words; None if it answers, or if ``uri`` is no address of a server, which
        only MLflow knows how to ask.
    """
    creds = _host_credentials(uri)
    if creds is None or urlsplit(creds.host).scheme not in _REMOTE:
        return None
    import requests

    shown = Redactor()(uri)
    page = creds.host if is_databricks(uri) else f"{creds.host.rstrip('/')}/health"

    def ask() -> int:
        # As MLflow's client does it: its certificates, and the proxies and bundles of requests.
        # The status says it all: a body may never end, and requests reads it before it follows a
        # redirection, or not.
        with requests.Session() as session:
            session.get_redirect_target = _no_target  # type: ignore[method-assign]
            return session.get(
                page,
                timeout=timeout_seconds,
                verify=creds.verify,
                cert=creds.client_cert_path,
                stream=True,
            ).status_code

    try:
        # The time limit of requests begins anew with each byte. This one is for the whole answer.
        code = within(ask, timeout_seconds + _GRACE_SECONDS)
    except TookTooLongError:
        return (
            f"{shown} does not answer: timed out, "
            f"no complete HTTP header came within {timeout_seconds:g} s"
        )
    except (OSError, ValueError) as error:
        reason = _origin(error)
        return f"{shown} does not answer: {reason_of(reason)}{_hint(error, reason)}"
    # A server that refuses the health check is there, too.
    return None if code < 500 else f"{shown} answers HTTP {code}"


def _hint(error: Exception, reason: BaseException) -> str:
    """Which of the settings between a server and its client to look at, if it is one of them."""
    from requests.exceptions import ProxyError, SSLError

    if isinstance(error, ProxyError):
        return "; that is the proxy (HTTPS_PROXY), which servers named in NO_PROXY need not"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return "; its certificate is not trusted here (MLFLOW_TRACKING_SERVER_CERT_PATH)"
    if isinstance(error, SSLError):
        return "; it may demand a certificate of its clients (MLFLOW_TRACKING_CLIENT_CERT_PATH)"
    return ""


def wait_for_server(uri: str, timeout_seconds: float, *, asked_every: float = 1.0) -> str | None:
    """Waits for a server to be there; returns what is wrong if it is not by then."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = deadline - time.monotonic()
        wrong = why_unreachable(
            uri, timeout_seconds=max(_LEAST_SECONDS, min(REQUEST_SECONDS, left))
        )
        if wrong is None or left <= 0:
            return wrong
        time.sleep(min(asked_every, max(0.0, left)))


def credentials(uri: str) -> dict[str, str]:
    """The variables that let another process use the store as this one does, secrets included.

    On Databricks a notebook's own, which no environment holds, are turned into
    ``DATABRICKS_HOST`` and ``DATABRICKS_TOKEN``.
    """
    names = ("MLFLOW_", "DATABRICKS_", "AWS_", "AZURE_", "GOOGLE_")
    found = {name: value for name, value in os.environ.items() if name.startswith(names)}
    found.pop("MLFLOW_EXPERIMENT_NAME", None)  # The run's own has been chosen.
    if is_databricks(uri):
        from mlflow.utils.databricks_utils import get_databricks_host_creds

        creds = get_databricks_host_creds(uri)
        if creds.host:
            found["DATABRICKS_HOST"] = creds.host
        if creds.token:
            found["DATABRICKS_TOKEN"] = creds.token
    return found


def is_databricks(uri: str) -> bool:
    return uri == "databricks" or uri.startswith("databricks://")


def _host_credentials(uri: str) -> Any:
    """MLflow's ``MlflowHostCreds`` for a server; None where there is none, or MLflow tells why."""
    if not is_databricks(uri) and urlsplit(uri).scheme not in _REMOTE:
        return None
    try:
        if is_databricks(uri):
            from mlflow.utils.databricks_utils import get_databricks_host_creds

            return get_databricks_host_creds(uri)
        return _open_store(uri).get_host_creds()
    except Exception:  # The environment and the profiles name no workspace, or contradict.
        return None


def _open_store(uri: str) -> Any:
    from mlflow.tracking._tracking_service.utils import _get_store

    open_store: Callable[[str], Any] = _get_store
    return open_store(uri)


def _origin(error: BaseException) -> BaseException:
    """The error that the others were made of: it alone says what happened."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error

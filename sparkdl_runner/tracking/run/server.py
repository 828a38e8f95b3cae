"""The tracking server, or the database or folder in its place: its health, and who may use it."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.tracking.run.server_calls import TookTooLongError, reason_of, within

REQUEST_SECONDS = 10.0
# The errors of requests say more than ours: they come first.
_GRACE_SECONDS = 0.5
# A server that is waited for may take so long even when time is nearly up.
_LEAST_SECONDS = 0.5
_REMOTE = ("http", "https")


def _no_target(resp: Any) -> str | None:
    """Follows no redirection."""
    return None


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
        reason = origin(error)
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
    variables = {name: value for name, value in os.environ.items() if name.startswith(names)}
    variables.pop("MLFLOW_EXPERIMENT_NAME", None)  # The run's own has been chosen.
    if is_databricks(uri):
        from mlflow.utils.databricks_utils import get_databricks_host_creds

        creds = get_databricks_host_creds(uri)
        if creds.host:
            variables["DATABRICKS_HOST"] = creds.host
        if creds.token:
            variables["DATABRICKS_TOKEN"] = creds.token
    return variables


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
        return open_store(uri).get_host_creds()
    except Exception:  # The environment and the profiles name no workspace, or contradict.
        return None


def open_store(uri: str) -> Any:
    from mlflow.tracking._tracking_service.utils import _get_store

    open_uri: Callable[[str], Any] = _get_store
    return open_uri(uri)


def origin(error: BaseException) -> BaseException:
    """The error that the others were made of: it alone says what happened."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error

"""The Spark Connect session of this process: its settings, and whether its server answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlparse

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.driver.spark.context import check_version
from sparkdl_runner.launch.wire import network

ANSWER_SECONDS = 2.0
_DEFAULT_PORT = 15002


def require_session() -> Any:
    """This thread's session, or the process's.

    Raises:
        LaunchError: There is none, or its Spark is too old.
    """
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.getActiveSession() or SparkSession._default_session
    if session is None or session.is_stopped:
        raise LaunchError(
            "There is no Spark Connect session: create one with "
            "SparkSession.builder.remote('sc://HOST').getOrCreate() before run(), or use a "
            "negative number to run on this host alone, without Spark."
        )
    check_version(session.version)
    return session


def setting(session: Any, name: str) -> str | None:
    """One of Spark's settings on the server; None where it is not set."""
    found = session.conf.get(name, None)
    return None if found is None else str(found)


def server_of(session: Any) -> tuple[str, int]:
    """The host and port at which the server, or what stands before it, is asked."""
    place = urlparse(f"//{session.client._builder.endpoint}")
    return place.hostname or "localhost", place.port or _DEFAULT_PORT


def answers(session: Any) -> bool:
    """Whether something still listens where the server is; true if that cannot be told."""
    try:
        host, port = server_of(session)
    except Exception:  # Another kind of channel than pyspark's own.
        return True
    return network.answers(host, port, ANSWER_SECONDS)

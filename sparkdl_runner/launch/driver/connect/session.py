"""The Spark Connect session of this process: its settings, its errors, and its server."""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlparse
from weakref import WeakSet

from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import LaunchError, RunCancelledError, RunnerError
from sparkdl_runner.launch.driver.spark import failure
from sparkdl_runner.launch.driver.spark.context import check_version
from sparkdl_runner.launch.driver.spark.job import SparkAction
from sparkdl_runner.launch.wire import network

CONNECT_SECONDS = 2.0
# How long a server may take to answer where no task has to run.
ANSWER_SECONDS = 60.0
_DEFAULT_PORT = 15002
# As pyspark and the server call a session that the server does not have (any more).
_UNKNOWN_SESSION = (
    r"\[NO_ACTIVE_SESSION\]|\[INVALID_HANDLE\.SESSION_(?:CHANGED|NOT_FOUND|CLOSED)\]|"
    r"incorrect server side session identifier"
)
_REFUSED = r"StatusCode\.(?:UNAUTHENTICATED|PERMISSION_DENIED)"
UNKNOWN = (
    "The Spark Connect server does not know this session any more: it was started again, or the "
    "session was unused for longer than the server allows "
    "(spark.connect.session.manager.defaultSessionTimeout, by default 60 min). Make a new one: "
    "stop() this one, then SparkSession.builder.remote(…).getOrCreate()."
)
_seen: WeakSet[Any] = WeakSet()
_T = TypeVar("_T")


def require_session() -> Any:
    """This thread's session, or the process's.

    Raises:
        LaunchError: There is none, its server does not answer or does not know it, or their
            versions of Spark do not fit.
    """
    import pyspark

    try:
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise LaunchError(
            f"Spark Connect's client is not complete here ({first_line(error)}): run pip install "
            f"'pyspark[connect]=={pyspark.__version__}'."
        ) from None
    session = SparkSession.getActiveSession() or SparkSession._default_session
    if session is None or session.is_stopped:
        raise LaunchError(
            "There is no Spark Connect session: create one with "
            "SparkSession.builder.remote('sc://HOST').getOrCreate() before run(), or use a "
            "negative number to run on this host alone, without Spark."
        )
    if session not in _seen:
        atexit.register(_let_the_process_exit, session)
        _seen.add(session)
    if not answers(session):
        raise LaunchError(no_answer(session))
    version = answer(session, lambda: session.version)
    check_version(version)
    if version.partition(".")[0] != pyspark.__version__.partition(".")[0]:
        raise LaunchError(
            f"This client is pyspark {pyspark.__version__}, and its server Spark {version}: ranks "
            f"need the same major version on both. Install pyspark {version} here (pip install "
            f"'pyspark[connect]=={version}')."
        )
    return session


def start_session() -> Any:
    """This process's session; where it has none, one that reaches what SPARK_REMOTE names.

    Raises:
        LaunchError: SPARK_REMOTE is no address, or see ``require_session``.
    """
    with suppress(ImportError):  # Then the client is not complete.
        from pyspark.sql.connect.session import SparkSession

        if SparkSession.getActiveSession() is None and SparkSession._default_session is None:
            try:
                # As getOrCreate does, which would first ask a server that may not be there.
                session = SparkSession(os.environ.get("SPARK_REMOTE", ""))
            except Exception:
                # The variable's value is left out, which may hold a token.
                raise LaunchError(
                    "SPARK_REMOTE is no address of a Spark Connect server: set it to sc://HOST, or "
                    "sc://HOST:PORT/;use_ssl=true, or unset it."
                ) from None
            SparkSession._set_default_and_active_session(session)
            os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    return require_session()


def in_this_session(call: Callable[[], _T]) -> Callable[[], _T]:
    """Has another thread make the call in this thread's session, not in the process's first one."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.getActiveSession()

    def made() -> _T:
        with as_active(session):
            return call()

    return made


@contextmanager
def as_active(session: Any) -> Iterator[None]:
    """Makes a session this thread's for a while; threads of a pool have none of their own."""
    from pyspark.sql.connect.session import SparkSession

    active = SparkSession._active_session
    before = getattr(active, "session", None)
    active.session = session
    try:
        yield
    finally:
        active.session = before


def setting(session: Any, name: str) -> str | None:
    """One of Spark's settings on the server; None where it is not set."""
    found = answer(session, lambda: session.conf.get(name, None))
    return None if found is None else str(found)


def answer(session: Any, ask: Callable[[], _T]) -> _T:
    """Asks the server something that runs no task, and waits a minute at most.

    pyspark would ask a server that listens and does not speak for ten minutes, and say nothing.

    Args:
        session: The session that is asked.
        ask: Asks it.

    Raises:
        LaunchError: It has not answered, or in a way that cannot be used.
    """
    asked = SparkAction(ask, thread=threading.Thread)
    if not asked.wait(ANSWER_SECONDS):
        host, port = server_of(session)
        raise LaunchError(
            f"What listens at {host}:{port} has not answered in {ANSWER_SECONDS:g} s: it is "
            "no Spark Connect server, it hangs or has lost its Spark, or one side encrypts and the "
            "other does not. use_ssl=true or a token in the client's address encrypts: "
            "sc://…/;use_ssl=true."
        )
    with in_a_sentence(session):
        return asked.result()


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
    return network.answers(host, port, CONNECT_SECONDS)


def no_answer(session: Any) -> str:
    """The sentence where the server is gone."""
    host, port = server_of(session)
    return (
        f"The Spark Connect server at {host}:{port} does not answer: it has ended, or the network "
        "to it is down. Once it is there again, make a new session: a server that was started "
        "again knows none of before. A training with checkpoints goes on from the last one."
    )


def is_stopped_by_user(session: Any) -> bool:
    """Whether ``stop()`` was called.

    pyspark also closes a session whose server was started again, which then stays the default one.
    """
    return bool(session.is_stopped) and getattr(type(session), "_default_session", 0) is not session


@contextmanager
def in_a_sentence(session: Any) -> Iterator[None]:
    """Raises what pyspark raises before any rank has started as an error that a person can act on.

    Args:
        session: The session that is asked.

    Raises:
        LaunchError: The server, or its executors, cannot be used.
        RunCancelledError: The session was stopped, or its query cancelled.
    """
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        raise _explained(session, error) from error


def _explained(session: Any, error: Exception) -> RunnerError:
    text = str(error)
    if is_stopped_by_user(session):
        return RunCancelledError("The session was stopped before the ranks had started.")
    if session.is_stopped or re.search(_UNKNOWN_SESSION, text):
        return LaunchError(UNKNOWN)
    if refused := re.search(_REFUSED, text):
        told = re.search(r'details = "(.+)"', text)
        return LaunchError(
            f"The Spark Connect server refuses this client ({told[1] if told else refused[0]}): "
            "its token is wrong or has expired. Make a new session with a new one."
        )
    found = re.search(r"Python in worker has different version:? \(?'?(\d+\.\d+)", text)
    if found:
        import platform

        return LaunchError(
            f"The server's executors have Python {found[1]}, and this client "
            f"{platform.python_version()}: functions travel between equal versions alone. Use "
            f"Python {found[1]} here, or the client's there."
        )
    if found := re.search(r"ModuleNotFoundError: No module named '(\w+)", text):
        return LaunchError(
            f"The Python of the server's executors lacks {found[1]}: install it on every host of "
            "the cluster, or start the server with a PYSPARK_PYTHON that has it."
        )
    known = failure.explain(error, python="python3")
    if type(known) is RunnerError:
        return LaunchError(
            "The server's executors could not be asked what they have, which ranks need: "
            f"{first_line(error)}"
        )
    return known


def _let_the_process_exit(session: Any) -> None:
    """Has pyspark say its last words to the server once: it would try ten minutes."""
    with suppress(Exception):
        session.client.set_retry_policies([])

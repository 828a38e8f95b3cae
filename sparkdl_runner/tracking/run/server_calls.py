"""Calls of MLflow's client with a deadline, and their errors in one sentence.

By itself, the client would try for many minutes.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.base.shown_text import first_line
from sparkdl_runner.errors import LaunchError

_Result = TypeVar("_Result")
# Advice for users of Python and of YAML.
WITHOUT = "run without MLflow: RunConfig(tracking=False), or tracking: false for the train job."


class TookTooLongError(Exception):
    """There was no answer in time."""


def within(
    action: Callable[[], _Result],
    timeout_seconds: float,
    *,
    when_late: Callable[[_Result], Any] | None = None,
) -> _Result:
    """Does something in a thread, and leaves it there when time is up.

    Args:
        action: What to do. It sees the caller's context variables.
        timeout_seconds: How long it may take.
        when_late: Called with a result that comes when time is up.

    Returns:
        What the action returned.

    Raises:
        TookTooLongError: Time is up.
        Exception: What the action raised.
    """
    ended: Future[_Result] = Future()

    def act() -> None:
        try:
            result = action()
        except BaseException as error:
            with suppress(InvalidStateError):
                ended.set_exception(error)
            return
        try:
            ended.set_result(result)
        except InvalidStateError:
            if when_late is not None:
                with suppress(Exception):
                    when_late(result)

    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(act,), name="sparkdl-mlflow-call", daemon=True
    ).start()
    try:
        wait([ended], timeout_seconds)
    finally:
        # A result that comes between the wait and here counts: a done future cannot be cancelled.
        is_late = ended.cancel()
    if is_late:
        raise TookTooLongError("MLflow took too long")
    return ended.result()


def problem_within(action: Callable[[], Any], timeout_seconds: float) -> str | None:
    """As ``within``, but returns what went wrong, in one line; None if nothing did."""
    try:
        within(action, timeout_seconds)
    except Exception as error:
        return reason_of(error)
    return None


def reason_of(error: BaseException) -> str:
    """The first line of an error, short enough for a tag, and without its full stop."""
    return first_line(error)[:500].rstrip(".")


@dataclass(frozen=True, kw_only=True)
class ServerCalls:
    """Calls a store while a run is opened, and turns its errors into launch errors."""

    uri: str
    timeout_seconds: float
    """How long each answer may take."""

    def __call__(
        self,
        action: Callable[[], _Result],
        what: str,
        *,
        when_late: Callable[[_Result], Any] | None = None,
    ) -> _Result:
        """Calls MLflow.

        Args:
            action: What to do, in a thread.
            what: The same in words: "MLflow cannot ...".
            when_late: Called with a result that comes when time is up.

        Raises:
            LaunchError: MLflow raised something, or gave no answer in time.
        """
        try:
            return within(action, self.timeout_seconds, when_late=when_late)
        except TookTooLongError:
            raise LaunchError(no_answer(self.uri, what, self.timeout_seconds)) from None
        except Exception as error:
            raise LaunchError(
                self._sentence(error, what)
            ) from None  # MLflow's own traceback does not help.

    def _sentence(self, error: Exception, what: str) -> str:
        reason = Redactor()(reason_of(error))
        code = getattr(error, "error_code", "")
        advice = "Check the tracking URI and the run's settings."
        if "Invalid Host header" in reason:
            advice = (
                "The server does not accept this URL's host name: start it with --allowed-hosts "
                "and that name with its port."
            )
        elif code in ("PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED") or any(
            sign in reason for sign in (" 401", " 403")
        ):
            advice = (
                "The server refuses these credentials: give this driver ones that may do that "
                "(MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_TOKEN, "
                "or DATABRICKS_HOST and DATABRICKS_TOKEN)."
            )
        elif code == "RESOURCE_DOES_NOT_EXIST":
            advice = "It is not there: leave run_id out for a new run, or correct it."
        return f"MLflow at {Redactor()(self.uri)} cannot {what}: {reason}. {advice} To {WITHOUT}"


def no_answer(uri: str, what: str, timeout_seconds: float) -> str:
    """Says that a store that is there hangs, and what to do."""
    return (
        f"MLflow at {Redactor()(uri)} gave no answer within {timeout_seconds:g} s when it was to "
        f"{what}. Look at the server's log, and whether its database answers; wait longer, "
        f"with a greater opening_timeout_seconds; or {WITHOUT}"
    )

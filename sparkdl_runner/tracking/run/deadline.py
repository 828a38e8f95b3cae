"""Calls of MLflow's client with an end: by itself it would try for many minutes."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class TookTooLongError(Exception):
    """Time was up before there was an answer."""


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
        when_late: What to do with a result that nobody waits for any more.

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
        # Either there is a result by now, or there will never be one: the future decides, once.
        is_late = ended.cancel()
    if is_late:
        raise TookTooLongError("MLflow took too long")
    return ended.result()


def problem_within(action: Callable[[], Any], timeout_seconds: float) -> str | None:
    """Does something in a thread, and leaves it there when time is up.

    Returns:
        What went wrong, in one line; None if it was done in time.
    """
    try:
        within(action, timeout_seconds)
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return None

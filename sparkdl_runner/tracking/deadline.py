"""Calls of MLflow's client with an end: by itself it would try for many minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def problem_within(action: Callable[[], Any], timeout_seconds: float) -> str | None:
    """Does something in a thread, and leaves it there when time is up.

    Returns:
        What went wrong, in one line; None if it was done in time.
    """
    ended: Future[Any] = Future()

    def act() -> None:
        try:
            ended.set_result(action())
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=act, name="sparkdl-mlflow-call", daemon=True).start()
    try:
        ended.result(timeout_seconds)
    except TimeoutError:
        return "MLflow took too long"
    except Exception as error:
        return (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
    return None

"""Calls of MLflow's are waited for so long, and no longer."""

from __future__ import annotations

import contextvars
import threading

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.tracking.run.server_calls import (
    ServerCalls,
    TookTooLongError,
    problem_within,
    within,
)

URL = "http://mlflow.example.com:5000"
SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("SEEN", default="nothing")


def fails() -> None:
    raise ValueError("first line.\nsecond line")


def test_what_ends_in_time_is_as_if_it_were_called_here() -> None:
    token = SEEN.set("the caller's")
    try:
        assert within(SEEN.get, 120) == "the caller's"
    finally:
        SEEN.reset(token)
    with pytest.raises(ValueError, match="first line"):
        within(fails, 120)
    assert problem_within(fails, 120) == "first line"
    assert problem_within(lambda: None, 120) is None


def test_what_takes_too_long_is_left_and_its_late_result_is_handed_on() -> None:
    release, handed_on, late = threading.Event(), threading.Event(), []

    def act() -> str:
        release.wait()
        return "too late"

    def take(result: str) -> None:
        late.append(result)
        handed_on.set()

    with pytest.raises(TookTooLongError, match="MLflow took too long"):
        within(act, 0.01, when_late=take)
    assert late == []
    release.set()
    assert handed_on.wait(120)
    assert late == ["too late"]


def test_a_name_that_the_server_was_not_told_of_is_no_matter_of_credentials() -> None:
    def refuse() -> None:
        raise MlflowException(
            "API request to endpoint /api/2.0/mlflow/experiments/get-by-name failed with error "
            "code 403 != 200. Response body: 'Invalid Host header - possible DNS rebinding attack "
            "detected'",
            error_code=PERMISSION_DENIED,
        )

    with pytest.raises(LaunchError, match="start it with --allowed-hosts") as caught:
        ServerCalls(uri=URL, timeout_seconds=120)(refuse, "open the experiment")
    assert "credentials" not in str(caught.value)

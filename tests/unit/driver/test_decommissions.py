"""Executors that will be taken away, where Spark cannot be asked any more."""

from __future__ import annotations

from types import SimpleNamespace

from sparkdl_runner.driver.spark.decommissions import decommission, executors_of

STOPPED = SimpleNamespace(_jsc=None, _jvm=None)
"""A context whose session has ended."""


def test_a_session_that_has_ended_runs_nothing():
    assert executors_of(STOPPED, "tag") == {}


def test_executors_of_a_session_that_has_ended_need_no_decommission():
    decommission(STOPPED, ["1"], "its host will be taken away")


def test_spark_is_asked_nothing_where_no_executor_goes():
    decommission(None, [], "its host will be taken away")

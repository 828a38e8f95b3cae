"""Executors that will be taken away, where Spark cannot be asked any more."""

from __future__ import annotations

from types import SimpleNamespace

from sparkdl_runner.driver.spark import launcher
from sparkdl_runner.driver.spark.decommissions import decommission
from sparkdl_runner.driver.spark.executors import executors_of

STOPPED = SimpleNamespace(_jsc=None, _jvm=None)
"""A context whose session has ended."""


def test_a_session_that_has_ended_runs_nothing():
    assert executors_of(STOPPED, "tag") == {}


def test_executors_of_a_session_that_has_ended_need_no_decommission():
    decommission(STOPPED, ["1"], "its host will be taken away")


def test_spark_is_asked_nothing_where_no_executor_goes():
    decommission(None, [], "its host will be taken away")


def test_all_hosts_that_had_a_notice_are_left_out(monkeypatch):
    """Their ranks had notices at once, and one of them ended all."""
    monkeypatch.setattr(launcher, "executors_of", lambda *_: {"7": {0}, "8": {1}, "9": {2}})
    gang = SimpleNamespace(
        _context=STOPPED,
        _tag="tag",
        _is_single_host=False,
        watch=SimpleNamespace(partitions_of=lambda ranks: {rank - 1 for rank in ranks}),
        failures=[SimpleNamespace(preempted_ranks=(1, 3)), SimpleNamespace(preempted_ranks=())],
    )
    assert launcher.SparkGang.leaving_executors(gang) == {"7", "9"}

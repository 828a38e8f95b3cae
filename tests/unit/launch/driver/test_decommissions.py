"""Executors that will be taken away, where Spark cannot be asked any more."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from sparkdl_runner.launch.driver.spark import decommissions, launcher
from sparkdl_runner.launch.driver.spark.decommissions import decommission
from sparkdl_runner.launch.driver.spark.executors import executors_of

STOPPED = SimpleNamespace(_jsc=None, _jvm=None)
"""A context whose session has ended."""
KEYS = SimpleNamespace(mkString=lambda by: by.join(["7", "9"]))


def test_a_session_that_has_ended_runs_nothing():
    assert executors_of(STOPPED, "tag") == {}


def test_executors_of_a_session_that_has_ended_need_no_decommission():
    decommission(STOPPED, ["1"], "its host will be taken away")


def test_spark_is_asked_nothing_where_no_executor_goes():
    decommission(None, [], "its host will be taken away")


class Gang(launcher.SparkGang):
    """One that has ended, of three ranks."""

    _context, _tag, _is_single_host, failures, watch = STOPPED, "tag", False, (), None
    ranks_per_task = 1

    def __init__(self):
        pass


def a_gang(monkeypatch):
    monkeypatch.setattr(launcher, "executors_of", lambda *_: {"7": {0}, "8": {1}, "9": {2}})
    return Gang()


def test_all_hosts_that_had_a_notice_are_left_out(monkeypatch):
    """Their ranks had notices at once, and one of them ended all."""
    gang = a_gang(monkeypatch)
    gang.failures = [SimpleNamespace(preempted_ranks=(1, 3)), SimpleNamespace(preempted_ranks=())]
    gang.watch = SimpleNamespace(partitions_of=lambda ranks: {rank - 1 for rank in ranks})
    assert gang.leaving_executors() == {"7", "9"}


def test_executors_of_which_nothing_was_heard(monkeypatch):
    gang = a_gang(monkeypatch)
    gang.watch = SimpleNamespace(unheard=lambda: {1, 2})
    assert gang.unheard_executors() == {"8", "9"}
    gang.ranks_per_task = 2
    assert gang.unheard_executors() == {"7", "8"}


def test_all_ranks_of_a_task_hear_that_its_executor_goes(monkeypatch):
    gang, told = a_gang(monkeypatch), []
    gang.ranks_per_task = 2
    gang.server = SimpleNamespace(preempt=lambda *what: told.append(what))
    gang._preempt({0, 2}, "goes")
    assert told == [([0, 1, 4, 5], "goes")]


def test_ranks_on_executors_that_will_go_are_told_each_time_and_the_user_once(monkeypatch, capsys):
    gone = SimpleNamespace(isEmpty=lambda: False, keySet=lambda: KEYS)
    backend = SimpleNamespace(executorsPendingDecommission=lambda: gone)
    spark = SimpleNamespace(schedulerBackend=lambda: backend)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark))
    assert decommissions._decommissioned(context) == {"7", "9"}
    monkeypatch.setattr(decommissions, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(decommissions, "executors_of", lambda *_: {"7": {0, 3}, "8": {1}})
    told, twice = [], threading.Event()

    def tell(partitions, reason):
        told.append((partitions, reason))
        if len(told) == 2:
            twice.set()

    watch = decommissions.Decommissions(context, "tag", tell)
    assert twice.wait(120)
    watch.close()
    assert told[:2] == [({0, 3}, "Spark decommissions executor 7")] * 2
    assert capsys.readouterr().err == (
        "sparkdl_runner: Spark decommissions executor 7: its ranks are asked to save, and all end "
        "with that checkpoint.\n"
    )

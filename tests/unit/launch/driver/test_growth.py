"""When a run that is smaller than it should be is asked to end for more ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.driver.spark import executors, growth
from sparkdl_runner.launch.driver.spark.executors import Executor
from sparkdl_runner.launch.driver.spark.growth import Growth
from sparkdl_runner.launch.driver.spark.task_shape import TaskShape


class Cluster:
    """What Spark would answer at each look; the last answer stays. The watch ends after the last.

    Args:
        answers: At each look, the slots, and each executor's host and tasks.
    """

    def __init__(self, monkeypatch, *answers):
        self._answers = list(answers)
        self.now = 0.0
        monkeypatch.setattr(growth, "count_places", lambda context, shape: self._answers[0][0])
        monkeypatch.setattr(growth, "list_executors", lambda context: self._executors())
        monkeypatch.setattr(growth, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(growth, "_turns", growth._Turns())

    def _executors(self):
        return [
            Executor(identifier=f"{host}-{tasks}", host=host, tasks=tasks)
            for host, tasks in self._answers[0][1].items()
        ]

    def wait(self, seconds):
        """Stands for the event that ends the watch: the next look is that of the next answer."""
        self.now += seconds
        del self._answers[0]
        return not self._answers


def watch(growing, cluster, *, size=1, wanted=3):
    asked: list[str] = []
    growing._watch(size, wanted, {"a-1"}, asked.append, cluster)
    return asked


TWO_FREE = (3, {"a": 1, "b": 0, "c": 0})


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([TWO_FREE, TWO_FREE], ["1 → 3 ranks: executors b, c came"]),
        ([(2, {"a": 1, "b": 0})] * 2, ["1 → 2 ranks: executor b came"]),
        # As many as were there at both looks.
        ([(2, {"a": 1, "b": 0}), TWO_FREE], ["1 → 2 ranks: executors b, c came"]),
        ([TWO_FREE], []),
        ([TWO_FREE, (1, {"a": 1}), TWO_FREE], []),
        # Another job has them.
        ([(3, {"a": 1, "b": 1, "c": 1})] * 3, []),
        # The rank has not begun, or has ended.
        ([(3, {"a": 0, "b": 0, "c": 0})] * 3, []),
    ],
)
def test_a_run_grows_once_free_slots_were_there_twice(monkeypatch, answers, asked):
    cluster = Cluster(monkeypatch, TWO_FREE, *answers)
    growing = Growth(None, TaskShape())
    assert watch(growing, cluster) == asked
    assert growing.take_target() == (int(asked[0][4]) if asked else 0)
    assert growing.take_target() == 0


def test_a_host_that_was_there_before_came_back_and_growths_keep_apart(monkeypatch):
    cluster = Cluster(monkeypatch, TWO_FREE, *[(2, {"a": 1, "b": 0})] * 40)
    growing = Growth(None, TaskShape())
    with growing.watched(3, 3, pytest.fail):  # All of them: nothing to watch.
        pass
    assert watch(growing, cluster, wanted=2) == ["1 → 2 ranks: executor b came back"]
    grew_at = cluster.now
    assert watch(growing, cluster, wanted=2) == ["1 → 2 ranks: executor b came back"]
    assert cluster.now >= grew_at + growth.GROWTH_SECONDS


def test_two_runs_side_by_side_do_not_claim_the_same_free_slots(monkeypatch):
    cluster = Cluster(monkeypatch, *[TWO_FREE] * 8)
    assert watch(Growth(None, TaskShape()), cluster)
    assert not watch(Growth(None, TaskShape()), cluster)


def test_a_run_that_spark_does_not_tell_of_its_executors_starts_all_the_same():
    stopped = SimpleNamespace(_jsc=None)
    with Growth(stopped, None).watched(3, 3, pytest.fail):
        pass


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("10.0.0.1:7077", "10.0.0.1", 7077), ("127.0.0.1", "127.0.0.1", 0), ("[::1]", "::1", 0)],
)
def test_an_executor_that_has_no_port_yet_is_listed_too(address, host, port):
    one = SimpleNamespace(id=lambda: "0", hostPort=lambda: address, activeTasks=lambda: 1)
    listed = SimpleNamespace(size=lambda: 1, apply=lambda number: one)
    store = SimpleNamespace(executorList=lambda active: listed)
    spark = SimpleNamespace(statusStore=lambda: store)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark))
    expected = Executor(identifier="0", host=host, port=port, tasks=1)
    assert executors.list_executors(context) == [expected]

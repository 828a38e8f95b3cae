"""Slots that are lost between the submission of a run and its start."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest

from one_module import replace_in
from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark import launcher, slots
from sparkdl_runner.launch.driver.spark.task_shape import TaskShape
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire.attempt import AttemptSpec

ATTEMPT = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="r")


@pytest.fixture
def gang_of():
    """Makes gangs, whose listening sockets are closed at the end."""
    gangs = []

    def make(num_proc, *, master="spark://host:7077"):
        tracker = SimpleNamespace(getExecutorInfos=list)
        scala_context = SimpleNamespace(statusTracker=lambda: tracker)
        context = SimpleNamespace(
            master=master, _conf={}, _jsc=SimpleNamespace(sc=lambda: scala_context)
        )
        gangs.append(launcher.SparkGang(context, TaskShape(), ATTEMPT, num_proc, ()))
        return gangs[-1]

    yield make
    for gang in gangs:
        gang.server.close()


def test_slots_are_counted_now_and_then_while_nobody_has_started(monkeypatch, gang_of):
    counted = []

    def count(context, shape):
        counted.append(shape)
        return 2

    clock = [100.0]
    replace_in(monkeypatch, slots, "time", monotonic=lambda: clock[0])
    monkeypatch.setattr(slots, "count_places", count)
    enough, too_few = gang_of(2), gang_of(3)
    assert enough.lost_slots(0, 0.0) is None
    assert too_few.lost_slots(0, 0.0) is None
    assert not counted
    clock[0] += 6
    assert enough.lost_slots(0, 0.0) is None
    assert "only 2 slots left: executors were lost" in too_few.lost_slots(0, 0.0)
    assert too_few.lost_slots(0, 0.0) is None  # not at every turn
    assert len(counted) == 2


def test_on_one_host_no_executor_can_be_lost(gang_of):
    gang = gang_of(3, master="local[2]")
    gang.slot_check._next_at = 0.0
    assert gang.lost_slots(0, 0.0) is None


class LosesSlots:
    """A gang whose slots are lost before it starts, if it has more than one rank."""

    failures = ()

    def __init__(self, context, shape, attempt, num_proc, reports, *, is_barrier):
        assert is_barrier
        self.num_proc = num_proc
        self.assembly = SimpleNamespace(given_back=None)
        self.slot_check = SimpleNamespace(has_failed=num_proc > 1)
        self.request_growth = self.request_stop = self.interrupt = print

    def run(self):
        if self.num_proc > 1:
            raise LaunchError("executors were lost")
        return ["one rank"]

    def leaving_executors(self):
        return set()

    def unheard_executors(self):
        return {"7"} if self.num_proc > 1 else set()


@pytest.fixture
def launcher_of_two(monkeypatch):
    slots_left = iter([2, 1])
    context = SimpleNamespace(master="spark://host:7077", applicationId="a", _conf={})
    monkeypatch.setattr(launcher, "require_spark_context", lambda: context)
    for name in ("checks", "decommission", "Growth", "LostHosts", "refuse_too_large_function"):
        monkeypatch.setattr(launcher, name, MagicMock())
    monkeypatch.setattr(launcher, "task_shape", lambda *_: TaskShape())
    monkeypatch.setattr(launcher, "wait_for_slots", lambda *_, **__: next(slots_left))
    monkeypatch.setattr(launcher, "SparkGang", LosesSlots)
    launcher.Growth.return_value.take_target.return_value = 0
    return launcher.SparkLauncher(2, None, ATTEMPT.config)


def test_a_queued_run_starts_with_the_slots_that_are_left_if_fewer_ranks_will_do(launcher_of_two):
    attempt = replace(ATTEMPT, config=RunConfig(min_num_proc=1))
    assert launcher_of_two.run(attempt, (), StopRequest()) == ["one rank"]
    assert launcher.LostHosts.return_value.add_executors.call_args_list[0] == call({"7"})


def test_a_queued_run_that_needs_all_its_slots_ends(launcher_of_two):
    with pytest.raises(LaunchError, match="executors were lost"):
        launcher_of_two.run(ATTEMPT, (), StopRequest())

"""Slots that are lost between the submission of a run and its start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.config import RunConfig
from sparkdl_runner.driver.spark import launcher
from sparkdl_runner.wire.attempt import Attempt

ATTEMPT = Attempt(backend="torch", function=b"", config=RunConfig(), run="r")


@pytest.fixture
def gang_of():
    """Makes gangs, whose listening sockets are closed at the end."""
    gangs = []

    def make(num_proc, *, master="spark://host:7077"):
        tracker = SimpleNamespace(getExecutorInfos=list)
        scala_context = SimpleNamespace(statusTracker=lambda: tracker)
        context = SimpleNamespace(
            master=master, getConf=dict, _jsc=SimpleNamespace(sc=lambda: scala_context)
        )
        gangs.append(launcher.SparkGang(context, None, ATTEMPT, num_proc, ()))
        return gangs[-1]

    yield make
    for gang in gangs:
        gang._server.close()


def test_slots_are_counted_now_and_then_while_nobody_has_started(monkeypatch, gang_of):
    counted = []

    def count(context, profile):
        counted.append(profile)
        return 2

    clock = [100.0]
    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(launcher, "count_slots", count)
    enough, too_few = gang_of(2), gang_of(3)
    assert enough.lost_slots() is None
    assert too_few.lost_slots() is None
    assert not counted
    clock[0] += 6
    assert enough.lost_slots() is None
    assert "only 2 slots left: executors were lost" in too_few.lost_slots()
    assert too_few.lost_slots() is None  # not at every turn
    assert len(counted) == 2


def test_on_one_host_no_executor_can_be_lost(gang_of):
    gang = gang_of(3, master="local[2]")
    gang._count_slots_at = 0.0
    assert gang.lost_slots() is None

"""Slots that may not be there, or are lost between the submission of a run and its start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner.driver import slots, spark_launcher
from sparkdl_runner.driver.spark_launcher import _SlotCheck
from sparkdl_runner.errors import LaunchError


def test_slots_are_counted_now_and_then_while_nobody_has_started(monkeypatch):
    counted = []

    def count(context, profile):
        counted.append(profile)
        return 2

    clock = [100.0]
    monkeypatch.setattr(spark_launcher.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(spark_launcher.slots, "count_slots", count)
    context = SimpleNamespace(master="spark://host:7077")
    enough, too_few = _SlotCheck(context, 2, None), _SlotCheck(context, 3, None)
    assert enough() is None
    assert too_few() is None
    assert not counted
    clock[0] += 6
    assert enough() is None
    assert "only 2 slots left: executors were lost" in too_few()
    assert too_few() is None  # not at every turn
    assert len(counted) == 2


def test_on_one_host_no_executor_can_be_lost():
    check = _SlotCheck(SimpleNamespace(master="local[2]"), 3, None)
    check._next_at = 0.0
    assert check() is None


def test_dynamic_allocation_is_refused():
    for value in (None, "", "false"):
        conf = {"spark.dynamicAllocation.enabled": value}
        slots.check_allocation(SimpleNamespace(getConf=lambda conf=conf: conf))
    on = {"spark.dynamicAllocation.enabled": "True"}
    with pytest.raises(LaunchError, match="set it to false and give the cluster a fixed size"):
        slots.check_allocation(SimpleNamespace(getConf=lambda: on))

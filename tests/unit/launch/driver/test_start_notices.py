"""Notices about a slow start, made from what Spark knows of the tasks."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.driver.spark import start_notices
from sparkdl_runner.launch.driver.spark.start_notices import StartNotices

DRIVER = SimpleNamespace(host="driver-1", port=43000)


@pytest.fixture
def start(monkeypatch):
    """A start of two ranks, whose notices look all the time."""
    state = SimpleNamespace(has_tasks=False, jobs=[], unheard={0, 1}, looks=0, told=[])
    monkeypatch.setattr(start_notices, "FIRST_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(start_notices, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(start_notices, "UNREACHED_SECONDS", 0.05)
    monkeypatch.setattr(start_notices, "SLOTS_SAY_SECONDS", 600.0)
    monkeypatch.setattr(start_notices, "tell", state.told.append)
    monkeypatch.setattr(start_notices, "has_tasks", lambda *_: state.has_tasks)
    monkeypatch.setattr(start_notices, "jobs_with_tasks", lambda *_: state.jobs)
    monkeypatch.setattr(
        start_notices, "hosts_of", lambda _, __, partitions: [f"h-{one}" for one in partitions]
    )

    def begin(num_proc=2, **values):
        vars(state).update(values)

        def unheard():
            state.looks += 1
            return set(state.unheard)

        watch = SimpleNamespace(num_proc=num_proc, unheard=unheard)
        state.notices = StartNotices(None, "tag", watch, DRIVER, set)

    state.begin = begin
    yield state
    state.notices.close()


def wait_until(holds):
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def after_ten_looks(start):
    """What has been told by then, from when something was."""
    wait_until(lambda: start.told)
    seen = start.looks
    wait_until(lambda: start.looks >= seen + 10)
    return start.told


def test_an_agent_that_does_not_reach_the_driver_is_named_with_what_to_do(start):
    start.begin(unheard={1}, has_tasks=True)
    (line,) = after_ten_looks(start)
    assert line.startswith(
        "1 of 2 ranks has not reached the driver at driver-1:43000 0.05 s "
        "after Spark started its task on h-1. "
    )
    assert "RunConfig.port_range" in line
    assert "spark.driver.host" in line
    assert "RunConfig.network_interface" in line
    start.unheard = set()
    start.notices._thread.join()
    assert start.told[1:] == ["all ranks have reached the driver now."]


def test_a_run_that_waits_for_slots_names_the_jobs_that_use_them_once(start):
    start.begin(jobs=["job 3 (sparkdl_runner: 2 ranks, torch)"])
    (line,) = after_ten_looks(start)
    assert line == (
        "waiting until 2 slots are free at once. Other jobs of this application "
        "use slots: job 3 (sparkdl_runner: 2 ranks, torch)."
    )


def test_a_single_rank_waits_for_a_single_slot(start):
    start.begin(num_proc=1)
    (line,) = after_ten_looks(start)
    assert line.startswith("waiting until a slot is free. No other job")


def test_nothing_is_said_once_all_agents_have_come(start):
    start.begin(unheard=set())
    start.notices._thread.join()
    assert not start.told

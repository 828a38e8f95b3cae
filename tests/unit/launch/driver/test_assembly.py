"""Ranks that are ordinary tasks: which runs have them, and when they give their slots back."""

from __future__ import annotations

import pytest

from one_module import replace_in
from sparkdl_runner.errors import LaunchError, RunCancelledError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark import assembly
from sparkdl_runner.launch.driver.spark.allocation import chosen_gang, is_dynamic
from sparkdl_runner.launch.driver.spark.assembly import Assembly, Tries
from sparkdl_runner.launch.driver.stop_request import StopRequest

DYNAMIC = {"spark.dynamicAllocation.enabled": "true", "spark.master": "yarn"}
MOST = "spark.dynamicAllocation.maxExecutors"


@pytest.fixture
def clock(monkeypatch):
    times = [100.0]
    replace_in(monkeypatch, assembly, "time", monotonic=lambda: times[0])
    return times


@pytest.mark.parametrize(
    ("gang", "settings", "expected"),
    [
        ("auto", {}, True),
        ("auto", DYNAMIC, False),
        ("tasks", {}, False),
        # Spark itself does not allocate there, and starts barrier stages.
        ("auto", DYNAMIC | {"spark.master": "local[4]"}, True),
        ("auto", DYNAMIC | {"spark.master": "local-cluster[2,1,1024]"}, False),
    ],
)
def test_the_session_chooses_where_the_user_does_not(gang, settings, expected, capsys):
    assert chosen_gang(settings.get, RunConfig(gang=gang), 2) is expected
    is_told = "starts no barrier stage: the ranks are ordinary tasks" in capsys.readouterr().err
    assert is_told is (gang == "auto" and not expected)


def test_more_ranks_than_executors_may_come_are_refused_at_once():
    limited = DYNAMIC | {MOST: "3", "spark.executor.cores": "4", "spark.task.cpus": "2"}
    told = r"^7 ranks need 7 task slots at once, and spark\S+maxExecutors=3 allows 6: 3 executors "
    with pytest.raises(LaunchError, match=told):
        chosen_gang(limited.get, RunConfig(), 7)
    chosen_gang(limited.get, RunConfig(), 6)
    chosen_gang(limited.get, RunConfig(min_num_proc=6), 7)
    with pytest.raises(LaunchError, match=r"maxExecutors=3 allows 3: 3 executors of 1 cores"):
        chosen_gang((DYNAMIC | {MOST: "3"}).get, RunConfig(), 4)  # YARN's default
    gpus = limited | {"spark.executor.resource.gpu.amount": "1"}
    with pytest.raises(LaunchError, match=r"maxExecutors=3 allows 3: 3 executors of 1 GPU\(s\)"):
        chosen_gang((gpus | {"spark.task.resource.gpu.amount": "0.25"}).get, RunConfig(), 4)
    standalone = DYNAMIC | {MOST: "3", "spark.master": "spark://host:7077"}
    chosen_gang(standalone.get, RunConfig(), 100)  # Nobody knows the cores of its workers.
    chosen_gang((DYNAMIC | {MOST: "2147483647"}).get, RunConfig(), 100)


def test_as_many_ranks_as_there_are_slots_is_no_number_where_slots_come_and_go():
    with pytest.raises(LaunchError, match=r"num_proc is 0, .* give the number of ranks"):
        chosen_gang(DYNAMIC.get, RunConfig(), 0)
    assert not is_dynamic({}.get)


def test_slots_are_given_back_when_the_time_for_the_start_is_over(clock, capsys):
    config = RunConfig(start_timeout_seconds=60)
    start = Assembly(config, 4)
    assert start.shortage(2, 10.0) is None
    assert not capsys.readouterr().err
    clock[0] += 5
    assert start.shortage(2, 15.0) is None
    assert "2 of 4 ranks have a slot: waiting up to 45 s" in capsys.readouterr().err
    assert start.shortage(2, 16.0) is None
    assert not capsys.readouterr().err  # not at every look
    assert start.given_back is None
    assert start.shortage(2, 60.0).startswith("2 of 4 ranks have a slot, and no more have come")
    assert start.given_back == 2


def test_slots_that_no_rank_has_are_not_given_back_while_other_jobs_use_them(clock, capsys):
    slots = [4]
    start = Assembly(RunConfig(start_timeout_seconds=60), 4, slots=lambda: slots[0])
    clock[0] += 61
    assert start.shortage(0, 0.0) is None
    assert "which other jobs of this application use" in capsys.readouterr().err
    slots[0] = 3
    assert start.shortage(0, 0.0) is None
    clock[0] += 61
    assert start.shortage(0, 0.0) is not None
    assert start.given_back == 0


def test_tasks_that_all_run_hold_no_slot_in_vain(clock, capsys):
    start = Assembly(RunConfig(), 4, all_started=lambda: True)
    clock[0] += 5
    assert start.shortage(1, 5.0) is None
    assert "all 4 ranks have a slot, 1 of them have started." in capsys.readouterr().err
    assert start.shortage(3, 1000.0) is None
    clock[0] += 1000
    assert start.shortage(0, 0.0) is None
    assert start.given_back is None


def test_fewer_ranks_that_will_do_wait_only_for_slots(clock):
    config = RunConfig(min_num_proc=2, slot_wait_seconds=20)
    start = Assembly(config, 4)
    assert start.shortage(1, 30.0) is None
    assert start.shortage(2, 30.0) is not None
    tries = Tries(config, {}.get, StopRequest())
    assert tries.next_size(2, 4, has_slots=False) == 2


def test_a_run_without_slots_tries_again_and_ends_after_its_wait(clock):
    waits = []
    stop = StopRequest()
    stop.cancelled.wait = waits.append
    settings = {"spark.dynamicAllocation.executorIdleTimeout": "2min"}
    tries = Tries(RunConfig(slot_wait_seconds=500), settings.get, stop)
    clock[0] += 200
    assert tries.next_size(1, 4, has_slots=False) == 4
    clock[0] += 200
    assert tries.next_size(1, 4, has_slots=False) == 4
    clock[0] += 200
    assert tries.next_size(1, 4, has_slots=True) == 4  # Others use them, and will end.
    told = "4 ranks need 4 task slots at once, and in 600 s the cluster has given 1, though"
    with pytest.raises(LaunchError, match=told):
        tries.next_size(1, 4, has_slots=False)
    assert len(waits) == 3
    assert all(60 <= wait <= 240 for wait in waits)


def test_the_wait_for_the_next_try_can_be_cancelled():
    stop = StopRequest()
    stop.cancel()
    with pytest.raises(RunCancelledError):
        Tries(RunConfig(), {}.get, stop).next_size(1, 4, has_slots=False)

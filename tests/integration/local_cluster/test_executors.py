"""Barrier tasks in executors that are processes of their own: ``local-cluster[2,1,1024]``."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import failure_rows
import psutil
import pytest
import rank_functions

from processes import running, wait_until_gone, workers
from sparkdl_runner import (
    DistributedRunner,
    HorovodRunner,
    LaunchError,
    RunConfig,
    WorkerDiedError,
    current_world,
)
from sparkdl_runner.launch.driver.returned_values import ReturnedValues
from sparkdl_runner.launch.driver.spark import start_notices
from sparkdl_runner.rank.world import World

pytestmark = pytest.mark.integration


def see_gpus() -> tuple[str, str]:
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    return visible, visible.split(",")[current_world().local_rank]


def test_ranks_wait_for_executors_and_each_finds_its_own_gpu_by_local_rank(light_cluster):
    (visible, first), (same, second) = DistributedRunner(
        num_proc=2, backend="horovod", run_config=RunConfig(slot_wait_seconds=300)
    ).gather(see_gpus)
    assert same == visible
    assert sorted(visible.split(",")) == ["3", "5"]
    assert [first, second] == visible.split(",")


@pytest.mark.one_lane
def test_output_of_executors_reaches_the_driver(light_cluster, capfd):
    HorovodRunner(np=2, driver_log_verbosity="all").run(rank_functions.speak)
    lines = capfd.readouterr().out.splitlines()
    assert {"[rank 0] printed by 0", "[rank 1] printed by 1"} <= set(lines)


def test_slots_that_never_come_are_told_after_the_wait(two_slots):
    runner = DistributedRunner(num_proc=3, run_config=RunConfig(slot_wait_seconds=1))
    started = time.monotonic()
    with pytest.raises(
        LaunchError, match=r"3 ranks need 3 task slots .* has 2 .*executor\.instances"
    ):
        runner.run(print)
    # The default would be a minute.
    assert 1 <= time.monotonic() - started < 60


@pytest.mark.one_lane
# The other rows are on a cluster of two hosts.
@pytest.mark.parametrize(("backend", "how"), [("torch", "kill"), ("horovod", "stop")])
def test_a_failed_rank_in_an_executor_is_named_as_anywhere(cluster, backend, how):
    failure_rows.check(backend, how)


def test_a_lost_executor_is_the_cause_and_the_next_run_works(two_slots, tmp_path):
    def main():
        if rank_functions.init("torch") == 1:
            (tmp_path / "lost at").write_text(str(time.monotonic()))
            # The agent's parent is Spark's daemon, whose parent is the executor.
            agent = psutil.Process(os.getppid())
            executor = next(p for p in agent.parents() if "java" in p.name())
            executor.send_signal(signal.SIGKILL)
        rank_functions.allreduce_until_stopped("torch")

    runner = DistributedRunner(num_proc=2, backend="torch")
    with pytest.raises(WorkerDiedError) as caught:
        runner.run(main)
    # Spark itself gives an executor that is silent two minutes.
    assert time.monotonic() - float((tmp_path / "lost at").read_text()) < 100
    assert caught.value.rank == 1
    assert re.match(r"Rank 1 of 2 on host \S+ is lost: executor \d exited", str(caught.value))
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()
    assert runner.run(rank_functions.meet, backend="torch") == [0, 1]


@pytest.mark.one_lane
def test_an_executor_that_is_lost_after_its_rank_has_ended_costs_nothing(light_cluster, tmp_path):
    def main(folder: Path) -> str:
        if current_world().rank == 1:
            agent = psutil.Process(os.getppid())
            executor = next(one for one in agent.parents() if "java" in one.name())
            (folder / "executor").write_text(str(executor.pid))
            return ""
        while not (folder / "is lost").exists():
            time.sleep(0.05)
        time.sleep(1)
        return "value"

    def executors() -> set[tuple[str, int]]:
        infos = light_cluster.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        return {(one.host(), one.port()) for one in infos}

    def lose_it_then() -> None:
        wait_for(lambda: one_task_has_ended(light_cluster))
        before = executors()
        os.kill(int((tmp_path / "executor").read_text()), signal.SIGKILL)
        wait_for(lambda: executors() != before)
        (tmp_path / "is lost").touch()

    losing = threading.Thread(target=lose_it_then, daemon=True)
    losing.start()
    runner = DistributedRunner(num_proc=2, backend="horovod")
    assert runner.run(main, tmp_path) == "value"
    losing.join()


def one_task_has_ended(cluster) -> bool:
    """Whether one of the two tasks of a run has."""
    tracker = cluster.sparkContext.statusTracker()
    stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return any(stage and (stage.numTasks, stage.numCompletedTasks) == (2, 1) for stage in stages)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.one_lane
def test_values_count_if_an_executor_is_lost_while_a_rank_lingers(
    light_cluster, two_slots, tmp_path, monkeypatch, capsys
):
    def main(folder: Path) -> str:
        agent = psutil.Process(os.getppid())
        executor = next(one for one in agent.parents() if "java" in one.name())
        if current_world().rank == 1:
            (folder / "executor").write_text(str(executor.pid))
            threading.Thread(target=time.sleep, args=(600,)).start()
        return "value"

    take, have_come = ReturnedValues.take, set()

    def take_note(values: ReturnedValues, world: World, text: str) -> None:
        take(values, world, text)
        have_come.add(world.rank)

    def lose_it_then() -> None:
        wait_for(lambda: have_come == {0, 1} and one_task_has_ended(light_cluster))
        os.kill(int((tmp_path / "executor").read_text()), signal.SIGKILL)

    monkeypatch.setattr(ReturnedValues, "take", take_note)
    losing = threading.Thread(target=lose_it_then, daemon=True)
    losing.start()
    config = RunConfig(shutdown_grace_seconds=300)
    runner = DistributedRunner(num_proc=2, backend="horovod", run_config=config)
    assert runner.run(main, tmp_path) == "value"
    losing.join()
    told = r"all functions had returned before a task was lost, so their values count: executor "
    assert re.search(told, capsys.readouterr().err)


LATE_PYTHON = """import os, sys, time
try:
    os.mkdir({mark!r})
except FileExistsError:
    pass
else:
    until = time.monotonic() + 600
    while os.path.exists({mark!r}) and time.monotonic() < until:
        time.sleep(0.1)
"""


@pytest.mark.one_lane
def test_a_start_that_is_given_up_ends_no_executor(cluster, tmp_path, monkeypatch, capsys):
    """Spark 3.5 ends the executor of a task that is killed while it waits in Spark's barrier."""
    context = cluster.sparkContext
    context.parallelize(range(2), 2).barrier().mapPartitions(list).count()
    tracker = context._jsc.sc().statusTracker()
    before = {(one.host(), one.port()) for one in tracker.getExecutorInfos()}
    # One executor's Python starts when the mark is gone. After half the timeout the other agent
    # asks for all in Spark's barrier.
    mark = tmp_path / "mark"
    (tmp_path / "sitecustomize.py").write_text(LATE_PYTHON.format(mark=str(mark)))
    monkeypatch.setitem(context.environment, "PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(start_notices, "FIRST_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(start_notices, "UNREACHED_SECONDS", 10.0)
    config = RunConfig(start_timeout_seconds=26)
    told = (
        r"(?s)1 of 2 ranks have started on .*, and the others have.*started tasks on 127\.0\.0\.1 "
    )
    with pytest.raises(LaunchError, match=told):
        DistributedRunner(num_proc=2, backend="horovod", run_config=config).run(print)
    # It was said before, too.
    assert re.search(
        r"1 of 2 ranks has not reached the driver at \S+:\d+ 10 s after .* on 127\.0\.0\.1\. ",
        capsys.readouterr().err,
    )
    mark.rmdir()
    monkeypatch.delitem(context.environment, "PYTHONPATH")
    context.parallelize(range(2), 2).barrier().mapPartitions(list).count()
    time.sleep(2)
    assert {(one.host(), one.port()) for one in tracker.getExecutorInfos()} == before


@pytest.mark.one_lane
def test_a_host_without_python_is_named_and_not_tried_again(cluster, monkeypatch, capsys):
    monkeypatch.setattr(cluster.sparkContext, "pythonExec", "/no/such/python")
    runner = DistributedRunner(num_proc=2, run_config=RunConfig(max_restarts=1))
    with pytest.raises(
        LaunchError, match=r"on host 127\.0\.0\.1 cannot start /no/such/python: Cann"
    ):
        runner.run(print)
    assert "Restarting" not in capsys.readouterr().err


def test_a_barrier_with_dynamic_allocation_is_refused_in_one_sentence(cluster, monkeypatch):
    configuration = cluster.sparkContext._conf
    configuration.set("spark.dynamicAllocation.enabled", "true")
    try:
        with pytest.raises(LaunchError, match=r"spark\.dynamicAllocation\.enabled is true"):
            DistributedRunner(num_proc=2, run_config=RunConfig(gang="barrier")).run(print)
    finally:
        configuration.set("spark.dynamicAllocation.enabled", "false")
    assert not running("sparkdl_runner.launch.worker")

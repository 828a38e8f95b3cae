"""Ranks as ordinary tasks, on a cluster that starts without executors: dynamic allocation."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import failure_rows
import psutil
import pyspark
import pytest
import rank_functions
from spark_sessions import session_on

from processes import wait_until_gone, workers
from sparkdl_runner import (
    DistributedRunner,
    LaunchError,
    RunConfig,
    WorkerDiedError,
    current_world,
)
from sparkdl_runner.launch.driver.spark import executors

pytestmark = pytest.mark.integration

SETTINGS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}


@pytest.fixture
def growing(sessions, monkeypatch):
    """At most 4 executors of 1 slot, and none that is idle."""
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    return session_on(sessions, "local-cluster[2,2,2048]", **SETTINGS).sparkContext


def executor_of_this_rank() -> psutil.Process:
    """The JVM above this worker: its agent's parent is Spark's daemon, whose parent that is."""
    return next(one for one in psutil.Process(os.getppid()).parents() if "java" in one.name())


def wait_for(path: Path) -> None:
    """Waits for a sign of another process."""
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_executors_come_for_the_ranks_stay_and_go(growing, capfd):
    assert not executors.list_executors(growing)
    runner = DistributedRunner(num_proc=4, backend="torch")
    assert runner.run(rank_functions.meet, backend="torch") == [0, 1, 2, 3]
    said = capfd.readouterr().err
    assert "spark.dynamicAllocation.enabled is true, with which Spark starts no barrier" in said
    assert re.search(r"(\d of|all) 4 ranks ha\S+ a slot", said)
    deadline = time.monotonic() + 120
    while executors.list_executors(growing):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_can_never_be_is_refused_at_once(growing):
    with pytest.raises(LaunchError, match=r"5 ranks need 5 .*maxExecutors=4 allows 4: 4 exec"):
        DistributedRunner(num_proc=5).run(print)
    with pytest.raises(LaunchError, match=r"is true, with which clusters start no barrier stage"):
        DistributedRunner(num_proc=2, run_config=RunConfig(gang="barrier")).run(print)


@pytest.mark.parametrize(("backend", "how"), [("torch", "kill"), ("torch", "raise")])
def test_a_failed_rank_is_named_as_anywhere(growing, backend, how):
    failure_rows.check(backend, how)


def test_a_lost_executor_is_the_cause_and_its_task_begins_no_second_time(growing, tmp_path, capfd):
    def main(folder: Path) -> None:
        rank = rank_functions.init("torch")
        (folder / f"{rank} began {time.time_ns()}").touch()
        if rank == 1:
            executor_of_this_rank().send_signal(signal.SIGKILL)
        rank_functions.allreduce_until_stopped("torch")

    runner = DistributedRunner(num_proc=2, backend="torch")
    with pytest.raises(WorkerDiedError) as caught:
        runner.run(main, folder=tmp_path)
    assert caught.value.rank == 1
    assert re.match(r"Rank 1 of 2 on host \S+ is lost: executor \d+ exited", str(caught.value))
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()
    assert len(list(tmp_path.iterdir())) == 2
    assert runner.run(rank_functions.meet, backend="torch") == [0, 1]


def test_a_killed_agent_is_the_cause_though_spark_starts_its_task_again(growing, capfd):
    def main() -> None:
        if rank_functions.init("torch") == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        rank_functions.allreduce_until_stopped("torch")

    with pytest.raises(WorkerDiedError) as caught:
        DistributedRunner(num_proc=2, backend="torch").run(main)
    assert re.match(
        r"Rank 1 of 2 on host \S+ is lost: the Python process of its Spark task was killed",
        str(caught.value),
    )
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()


def test_a_lost_executor_is_replaced_in_a_restart(growing, tmp_path):
    def main(folder: Path) -> list[int]:
        if rank_functions.init("torch") == 1 and not (folder / "lost").exists():
            (folder / "lost").touch()
            executor_of_this_rank().send_signal(signal.SIGKILL)
            time.sleep(600)
        return rank_functions.gather("torch", current_world().attempt)

    config = RunConfig(max_restarts=1, restart_backoff_seconds=0)
    runner = DistributedRunner(num_proc=2, backend="torch", run_config=config)
    assert runner.run(main, folder=tmp_path) == [1, 1]


def test_an_executor_that_is_removed_while_it_waits_is_replaced(growing, tmp_path):
    def occupy(rows):
        (tmp_path / "occupied").touch()
        deadline = time.monotonic() + 300
        while not (tmp_path / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return rows

    def remove_an_executor_that_waits() -> None:
        deadline = time.monotonic() + 120
        while not (waiting := workers()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        parents = psutil.Process(waiting[0].pid).parents()
        next(one for one in parents if "java" in one.name()).kill()

    def rank() -> int:
        return current_world().rank

    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(growing.parallelize(range(2), 2).mapPartitions(occupy).count)
        wait_for(tmp_path / "occupied")
        run = pool.submit(DistributedRunner(num_proc=4).gather, rank)
        try:
            remove_an_executor_that_waits()
        finally:
            (tmp_path / "go").touch()
        assert run.result() == [0, 1, 2, 3]
        other.result()


def test_a_gang_that_has_too_few_slots_gives_them_back_and_has_its_turn_later(
    growing, no_torch, monkeypatch, tmp_path, capfd
):
    def hold() -> int:
        deadline = time.monotonic() + 300
        while not (tmp_path / "given back").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return current_world().rank

    monkeypatch.setitem(growing.environment, "PYTHONPATH", no_torch)
    config = RunConfig(start_timeout_seconds=15, slot_wait_seconds=600)
    runner = DistributedRunner(num_proc=3, backend="horovod", run_config=config)
    said = ""
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(runner.gather, hold) for _ in range(2)]
        deadline = time.monotonic() + 300
        while "and gave them back, so that other runs can start" not in said:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            said += capfd.readouterr().err
        (tmp_path / "given back").touch()
        assert [run.result() for run in runs] == [[0, 1, 2]] * 2


def test_a_run_that_waits_for_slots_can_be_cancelled(growing):
    growing.parallelize(range(1), 1).count()
    future = DistributedRunner(num_proc=4).submit(time.sleep, 600)
    deadline = time.monotonic() + 120
    while not workers():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()

"""Ranks as ordinary tasks of a Spark Connect server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import CancelledError
from contextlib import ExitStack

import psutil
import pytest
import rank_functions
from connect_server import started, use, wait_for

from processes import wait_until_gone, workers
from sparkdl_runner import DistributedRunner, LaunchError, RunConfig, WorkerDiedError

pytestmark = pytest.mark.integration

TASKS = DistributedRunner(num_proc=2, backend="torch", run_config=RunConfig(gang="tasks"))


def test_a_lost_task_is_its_ranks_loss_and_the_next_run_works(session, capfd):
    def main() -> None:
        if rank_functions.init("torch") == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        rank_functions.allreduce_until_stopped("torch")

    with pytest.raises(WorkerDiedError, match=r"Rank 1 of 2 on host \S+ is lost") as caught:
        TASKS.run(main)
    assert caught.value.rank == 1
    assert wait_until_gone("sparkdl_runner.launch.worker"), workers()
    assert TASKS.run(rank_functions.meet, backend="torch") == [0, 1]


CLIENT = """
import sys, time
from pyspark.sql import SparkSession
from sparkdl_runner import DistributedRunner, RunConfig
SparkSession.builder.remote(sys.argv[1]).getOrCreate()
config = RunConfig(heartbeat_timeout_seconds=5)
DistributedRunner(num_proc=2, backend="torch", run_config=config).run(time.sleep, 600)
"""


def lose_an_executor() -> None:
    """Kills rank 1's executor, the JVM above its worker, and goes on in the other rank."""
    if rank_functions.init("torch") == 1:
        parents = psutil.Process(os.getppid()).parents()
        next(one for one in parents if "java" in one.name()).kill()
    rank_functions.allreduce_until_stopped("torch")


def test_executors_come_for_the_ranks_of_a_server_that_has_none(
    connect_mode, bare, tmp_path, capfd
):
    from pyspark.sql.connect.session import SparkSession

    settings = {
        "master": "local-cluster[2,1,1024]",
        "executor.cores": "1",
        "executor.memory": "512m",
        "dynamicAllocation.enabled": "true",
        "dynamicAllocation.maxExecutors": "2",
    }
    given = [f"spark.{name}={value}" for name, value in settings.items()]
    with started(tmp_path, bare, *given) as server, ExitStack() as stack:
        session = SparkSession.builder.remote(server.url).create()
        stack.callback(session.stop)
        use(session)
        runner = DistributedRunner(num_proc=2, backend="torch")
        assert runner.run(rank_functions.meet, backend="torch") == [0, 1]
        assert re.search(r"with which Spark starts no barrier stage", capfd.readouterr().err)
        with pytest.raises(LaunchError, match=r"maxExecutors=2 allows 2"):
            DistributedRunner(num_proc=3).run(print)

        future = runner.submit(rank_functions.sleep_in_ranks, seconds=600)
        wait_for(lambda: len(workers()) >= 4)
        future.cancel()
        with pytest.raises(CancelledError):
            future.result()
        assert wait_until_gone("sparkdl_runner.launch.worker"), workers()

        with pytest.raises(
            WorkerDiedError, match=r"Rank 1 of 2 on host \S+ is lost: its Spark task ended"
        ):
            runner.run(lose_an_executor)
        assert wait_until_gone("sparkdl_runner.launch.worker"), workers()

        # A client that is gone has no last word: its ranks end once they have not heard of it.
        with subprocess.Popen([sys.executable, "-c", CLIENT, server.url]) as client:
            wait_for(lambda: len(workers()) >= 4 or client.poll() is not None)
            client.kill()
        assert wait_until_gone("sparkdl_runner.launch.worker"), workers()

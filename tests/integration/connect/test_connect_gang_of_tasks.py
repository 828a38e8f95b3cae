"""Ranks as ordinary tasks of a Spark Connect server."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack

import pytest
import rank_functions
from connect_server import started, use

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

"""Several ranks in a task: executors with two GPUs each, all of which go to one task."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import psutil
import pyspark
import pytest
import rank_functions
from spark_sessions import session_on

from processes import still_running, workers
from sparkdl_runner import (
    DistributedRunner,
    LaunchError,
    RunConfig,
    TorchDistributor,
    WorkerDiedError,
    current_world,
    end_spare_workers,
)

pytestmark = pytest.mark.integration

# Two executors of one machine are two users of one set of GPUs; a lock folder shares them out.
DISCOVERY = """#!/bin/sh
for pair in '"4", "5"' '"6", "7"'; do
    if mkdir "{folder}/$(echo $pair | tr -dc 0-9)" 2>/dev/null; then
        echo "{{\\"name\\": \\"gpu\\", \\"addresses\\": [$pair]}}"
        exit 0
    fi
done
exit 1
"""


@pytest.fixture
def pairs(sessions, tmp_path_factory, monkeypatch):
    """Two executors of a task with two GPUs."""
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    folder = tmp_path_factory.mktemp("pairs-of-gpus")
    script = folder / "discover.sh"
    script.write_text(DISCOVERY.format(folder=folder))
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    return session_on(
        sessions,
        "local-cluster[2,4,1024]",
        **{
            "spark.executor.memory": "1g",
            "spark.worker.resource.gpu.amount": "2",
            "spark.worker.resource.gpu.discoveryScript": str(script),
            "spark.executor.resource.gpu.amount": "2",
            "spark.task.resource.gpu.amount": "2",
            "spark.task.cpus": "4",
        },
    ).sparkContext


def described() -> dict[str, object]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    dist.destroy_process_group()
    world = current_world()
    return {
        "rank": world.rank,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "node": int(os.environ["GROUP_RANK"]),
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        "threads": os.environ["OMP_NUM_THREADS"],
        "agent": os.getppid(),
        "total": int(total),
    }


def test_a_task_starts_a_rank_for_each_of_its_gpus(pairs, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ranks = DistributedRunner(num_proc=4, backend="torch").gather(described)
    assert [one["rank"] for one in ranks] == [0, 1, 2, 3]
    assert {one["total"] for one in ranks} == {6}
    assert {one["threads"] for one in ranks} == {"2"}, "the 4 cores of a task, for 2 ranks"
    agents = [one["agent"] for one in ranks]
    assert agents[0] == agents[1] != agents[2] == agents[3]
    # One machine is one host: each rank sees the GPUs of all, its own at its LOCAL_RANK.
    assert [one["local_rank"] for one in ranks] == [0, 1, 2, 3]
    assert {one["gpus"] for one in ranks} in ({"4,5,6,7"}, {"6,7,4,5"})


def test_sparks_distributor_has_a_node_of_two_devices_a_task(pairs):
    distributor = TorchDistributor(num_processes=4, local_mode=False, use_gpu=True)
    assert distributor.num_tasks == 2
    nodes = distributor._runner.gather(described)
    assert [one["local_rank"] for one in nodes] == [0, 1, 0, 1]
    assert [one["node"] for one in nodes] == [0, 0, 1, 1]
    assert nodes[0]["gpus"] == nodes[1]["gpus"] != nodes[2]["gpus"] == nodes[3]["gpus"]
    assert {one["gpus"] for one in nodes} == {"4,5", "6,7"}


def test_horovods_ranks_meet_and_what_does_not_fit_is_refused(pairs):
    runner = DistributedRunner(num_proc=4, backend="horovod")
    assert runner.run(rank_functions.meet, backend="horovod") == [0, 1, 2, 3]
    with pytest.raises(LaunchError, match=r"3 ranks are no multiple of 2.*ask for 2 or 4 ranks"):
        DistributedRunner(num_proc=3).run(print)
    with pytest.raises(LaunchError, match=r"6 ranks need 3 task slots of 2 ranks each at once"):
        DistributedRunner(num_proc=6, run_config=RunConfig(slot_wait_seconds=0)).run(print)


def test_one_rank_of_a_task_that_dies_ends_all_and_is_named(pairs):
    def work() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if current_world().rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    with pytest.raises(WorkerDiedError, match=r"[Rr]ank 3.*SIGKILL"):
        DistributedRunner(num_proc=4).run(work)
    assert not still_running(workers())


def test_a_run_whose_agent_is_killed_begins_again_and_each_agent_keeps_a_template(pairs):
    def work(*, dies: bool = False) -> int:
        if dies and current_world().attempt == 0 and current_world().rank == 1:
            os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
            time.sleep(600)
        return os.getppid()

    config = RunConfig(spare_seconds=120, max_restarts=1, restart_backoff_seconds=0)
    runner = DistributedRunner(num_proc=4, run_config=config)
    templates = runner.gather(work, dies=True)
    assert len(set(templates)) == 2
    assert set(runner.gather(work)) == set(templates)
    end_spare_workers()
    assert not still_running(workers())

"""A restart of real ranks, after a kill, from what they have left in their host's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkdl_runner import DistributedRunner, RunConfig

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def train(directory: str, *, sharded: bool) -> dict[str, Any]:
    import os
    import signal

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from sparkdl_runner import current_world
    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage

    read: list[str] = []
    from_storage = LocalStorage.open

    def noted(self: LocalStorage, name: str) -> Any:
        read.append(name.rpartition("/")[2])
        return from_storage(self, name)

    LocalStorage.open = noted  # type: ignore[method-assign]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    if sharded:
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters())
    with CheckpointManager(directory, memory_copies=1, asynchronous=False) as checkpoints:
        read.clear()
        restored = checkpoints.restore(model, optimizer)
        read_by_restore = sorted(set(read))
        first = restored.step if restored else 0
        for step in range(first + 1, 7):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 2 == 0:
                checkpoints.save(step, model, optimizer)
            dist.barrier()
            if step == 5 and not current_world().attempt and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
    return {"restored": first, "read": read_by_restore}


def holders() -> list[list[str]]:
    return [
        found.info["cmdline"]
        for found in psutil.process_iter(["cmdline"])
        if "sparkdl_runner-holder" in (found.info["cmdline"] or [])
    ]


def check(num_proc: int, directory: Path, *, sharded: bool) -> None:
    config = RunConfig(max_restarts=1, tracking=False)
    runner = DistributedRunner(num_proc=num_proc, backend="torch", run_config=config)
    before = holders()
    of_rank_0, of_rank_1 = runner.gather(train, str(directory), sharded=sharded)
    assert of_rank_0["restored"] == of_rank_1["restored"] == 4
    assert of_rank_0["read"] == ["manifest.json"]
    assert of_rank_1["read"] == []
    assert [one for one in holders() if one not in before] == []


def test_ranks_on_spark_restore_their_shards_from_memory(spark, tmp_path):
    check(2, tmp_path, sharded=True)


def test_ranks_of_the_local_launcher_restore_a_whole_model_from_memory(tmp_path):
    check(-2, tmp_path, sharded=False)

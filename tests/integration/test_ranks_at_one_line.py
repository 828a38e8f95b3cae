"""Ranks that call different collectives at one line, so that no stack tells who is the cause."""

from __future__ import annotations

import pytest

from sparkdl_runner import DistributedRunner, RunConfig, WorkerFailedError, WorkerHungError

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

# Ranks tell of their collectives once they have waited for two seconds.
CONFIG = RunConfig(tracking=False, hang_timeout_seconds=6)


def test_the_rank_that_calls_another_groups_collective_is_the_cause():
    def main():
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        groups = [None, dist.new_group([1, 2])]
        for step in range(9):
            dist.all_reduce(torch.ones(5), group=groups[dist.get_rank() == 1 and step == 4])

    with pytest.raises(WorkerHungError) as hung:
        DistributedRunner(num_proc=-3, backend="torch", run_config=CONFIG).run(main)
    assert hung.value.rank == 1
    assert (
        "Ranks 0, 2 wait in all_reduce(Float [5]) number 5 of group default_pg, which rank 1 has "
        "not called: the last there was all_reduce(Float [5]) number 4 of group default_pg."
    ) in str(hung.value)
    assert "It waits in all_reduce(Float [5]) number 1 of group" in hung.value.stacks


def test_the_rank_whose_tensor_has_another_shape_is_the_cause():
    def main():
        import horovod.torch as hvd
        import torch

        hvd.init()
        for step in range(9):
            hvd.allreduce_(torch.ones(7 if hvd.rank() == 1 and step == 4 else 5), name="loss")

    with pytest.raises(WorkerFailedError, match="Mismatched") as failed:
        DistributedRunner(num_proc=-3, backend="horovod", run_config=CONFIG).run(main)
    assert failed.value.rank == 1
    assert "This rank called allreduce_ loss(torch.float32 [7])." in failed.value.remote_traceback

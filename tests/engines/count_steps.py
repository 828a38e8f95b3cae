"""A training that does nothing but count: a job for tests that take its hosts away.

Each rank prints its steps with the time. A checkpoint is saved at every tenth.
"""

from __future__ import annotations

import argparse
import os
import time

from pyspark.sql import SparkSession

from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.tracking import Tracking

STEP_SECONDS = 0.1


def count(folder: str, steps: int, backend: str, hoard_mb: int) -> int:
    """Takes steps until there are so many. Returns the step from which this attempt went on.

    Args:
        folder: For checkpoints.
        steps: How many.
        backend: ``horovod`` or ``torch``.
        hoard_mb: What rank 1 of the first attempt takes of its host's memory at the 15th step.
    """
    import torch

    from sparkdl_runner import current_world
    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.tracking import log_metrics

    rank = current_world().rank
    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
        reduce = hvd.allreduce
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        reduce = dist.all_reduce
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    with CheckpointManager(folder) as checkpoints:
        restored = checkpoints.restore(model)
        first = restored.step if restored else 0
        hoard = []
        print(f"rank {rank} begins at {first} at {time.time():.1f}, process {os.getpid()}")
        for step in range(first + 1, steps + 1):
            reduce(torch.ones(1))
            time.sleep(STEP_SECONDS)
            print(f"rank {rank} has taken step {step} at {time.time():.1f}", flush=True)
            log_metrics(step, counted=step)
            if rank == 1 and step == 15 and not first:
                hoard.append(os.urandom(1 << 20) * hoard_mb)
            if step % 10 == 0:
                checkpoints.save(step, model)
    return first


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--tracking-uri", required=True)
    parser.add_argument("--experiment", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--name")
    parser.add_argument("--hoard-mb", type=int, default=0)
    parser.add_argument("--max-restarts", type=int, default=2)
    parser.add_argument("--slot-wait-seconds", type=float, default=60.0)
    options = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    tracking = Tracking(tracking_uri=options.tracking_uri, experiment=options.experiment)
    config = RunConfig(
        max_restarts=options.max_restarts,
        slot_wait_seconds=options.slot_wait_seconds,
        tracking=tracking,
        name=options.name,
    )
    runner = DistributedRunner(num_proc=2, backend=options.backend, run_config=config)
    first = runner.run(
        count,
        folder=options.folder,
        steps=options.steps,
        backend=options.backend,
        hoard_mb=options.hoard_mb,
    )
    print(f"the last attempt went on from {first}", flush=True)
    spark.stop()

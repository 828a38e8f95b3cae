"""A training that says where it is; as a script, it prints that and Spark's settings as JSON."""

import json
import os

from pyspark.sql import SparkSession

from sparkdl_runner import DistributedRunner, RunConfig


def train():
    import torch
    import torch.distributed as dist

    from sparkdl_runner import current_world

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    torch.manual_seed(dist.get_rank())
    # By hand: torch.optim and DistributedDataParallel import a compiler, which takes seconds.
    for _ in range(5):
        model.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.1 * parameter.grad
    world = current_world()
    mine = {
        "address": world.address,
        "local_rank": world.local_rank,
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "packed": os.environ.get("PACKED_ENVIRONMENT"),
        "weight": float(model.weight.sum()),
    }
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    dist.destroy_process_group()
    return everyone


def main():
    spark = SparkSession.builder.getOrCreate()
    config = RunConfig(tracking=False, slot_wait_seconds=300)
    ranks = DistributedRunner(num_proc=2, backend="torch", run_config=config).run(train)
    print(json.dumps({"ranks": ranks, "settings": dict(spark.sparkContext.getConf().getAll())}))
    spark.stop()


if __name__ == "__main__":
    main()

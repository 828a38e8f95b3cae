"""A training whose steps can be seen from outside while faults are made."""

from __future__ import annotations

HOARD_MB = 2100


def hoard(kind: str) -> None:
    """Takes more memory than a container has.

    Args:
        kind: ``"own"`` for this process's, so that the kernel ends it; ``"shared"`` for what
            belongs to no process, so that the kernel ends Java, and the container with it.
    """
    import os
    from pathlib import Path

    if kind == "own":
        os.urandom(1 << 20) * HOARD_MB
        return
    for name in Path("/proc").glob("[0-9]*/comm"):
        if name.read_text() == "java\n":
            name.with_name("oom_score_adj").write_text("1000")
    with open("/dev/shm/hoard", "wb") as file:
        for _ in range(HOARD_MB):
            file.write(bytes(1 << 20))


def train(folder: str, backend: str, checkpoint_url: str) -> int:
    """Steps until the file ``enough`` is in a folder that all hosts share.

    Rank 0 adds a line to the file ``steps`` for each: the time, the attempt, the step at which the
    attempt began, and the step. Rank 1 removes a file ``hoard`` there, and takes memory.

    Args:
        folder: The shared one.
        backend: The run's.
        checkpoint_url: Where checkpoints are kept.

    Returns:
        The last step.
    """
    import os
    import time

    import torch

    from sparkdl_runner import current_world
    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.tracking import log_metrics

    world = current_world()
    if backend == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        all_reduce = dist.all_reduce
    else:
        import horovod.torch as hvd

        hvd.init()
        all_reduce = hvd.allreduce_
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with CheckpointManager(checkpoint_url, every_steps=20) as checkpoints:
        restored = checkpoints.restore(model, optimizer)
        step = first = restored.step if restored else 0
        is_enough = torch.zeros(1)
        while not is_enough:
            time.sleep(0.1)
            step += 1
            if world.rank == 0:
                is_enough += os.path.exists(f"{folder}/enough")
                with open(f"{folder}/steps", "a") as steps:
                    steps.write(f"{time.time()} {world.attempt} {first} {step}\n")
            elif os.path.exists(wanted := f"{folder}/hoard"):
                with open(wanted) as file:
                    kind = file.read()
                os.remove(wanted)
                hoard(kind)
            all_reduce(is_enough)
            log_metrics(step, steps=step)
            if checkpoints.due(step) or is_enough:
                checkpoints.save(step, model, optimizer)
    return step

"""Functions that tests run as ranks; they travel by name, like those of a user's own module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any


def describe() -> dict[str, Any]:
    """Returns rank 0's view of all ranks, gathered by Horovod."""
    import horovod.torch as hvd
    import torch

    from sparkdl_runner import current_world

    # Before Horovod opens its own.
    inheritable = [fd for fd in range(3, 256) if _is_inheritable(fd)]
    hvd.init()
    world = current_world()
    mine = torch.tensor([[hvd.rank(), hvd.local_rank(), hvd.size(), os.getpid(), os.getppid()]])
    gathered = hvd.allgather(mine).tolist()
    return {
        "ranks": gathered,
        "world": world.to_json(),
        "threads": os.environ["OMP_NUM_THREADS"],
        "modules": sorted(name for name in ("pyspark", "horovod", "torch") if name in sys.modules),
        "secrets": [name for name in os.environ if "SECRET" in name],
        "argv": sys.argv,
        "inheritable": inheritable,
    }


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def train_with_horovod() -> list[list[float]]:
    """Unmodified Horovod training code, with most of what such code uses."""
    import horovod.torch as hvd
    import torch

    hvd.init(process_sets="dynamic")
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    first = hvd.add_process_set([0])
    for step in range(3):
        optimizer.zero_grad()
        inputs = torch.full((4, 3), float(hvd.rank() + step))
        torch.nn.functional.mse_loss(model(inputs), torch.ones(4, 1)).backward()
        optimizer.step()
    if hvd.rank() == 0:
        assert float(hvd.allreduce(torch.ones(1), process_set=first, op=hvd.Sum)) == 1.0
    # Named, since Horovod counts unnamed operations, and rank 0 has had one more.
    weights = hvd.allgather(model.weight.detach(), name="weights")
    for _ in range(hvd.rank()):  # uneven on purpose: join() is for that
        hvd.allreduce(torch.ones(1), name="uneven")
    hvd.join()
    assert hvd.broadcast_object({"from": hvd.rank()}, root_rank=1, name="object") == {"from": 1}
    for _ in range(3):  # Notebooks do this, and each of Horovod's own tests.
        hvd.shutdown()
        hvd.init()
        assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
    return weights.tolist()


def train_with_ddp() -> list[list[float]]:
    """Unmodified DistributedDataParallel code."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(backend="gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        inputs = torch.full((4, 3), float(dist.get_rank() + step))
        torch.nn.functional.mse_loss(model(inputs), torch.ones(4, 1)).backward()
        optimizer.step()
    weights = [torch.zeros(1, 3) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module.weight.detach())
    subgroup = dist.new_group([0])
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), group=subgroup)
    for _ in range(10):  # Notebooks do this; under torchrun it is a race.
        dist.destroy_process_group()
        dist.init_process_group(backend="gloo")
        dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        time.sleep(1)  # Rank 0 has returned by then, and its store is still there.
        store = dist.distributed_c10d._get_default_store()
        store.set("late", "word")
        assert store.get("late") == b"word"
    return torch.cat(weights).tolist()


def allreduce_until_stopped(backend: str, seconds: float = 600.0) -> None:
    """Reduces in a loop, as a rank does whose peer is about to fail."""
    import torch

    deadline = time.monotonic() + seconds
    if backend == "horovod":
        import horovod.torch as hvd

        while time.monotonic() < deadline:
            hvd.allreduce(torch.ones(10))
    else:
        import torch.distributed as dist

        while time.monotonic() < deadline:
            dist.all_reduce(torch.ones(10))


def init(backend: str) -> int:
    """Joins the other ranks. Returns the rank."""
    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
        return int(hvd.rank())
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.get_rank()


def gather(backend: str, mine: Any) -> list[Any]:
    """What every rank has, in the order of ranks."""
    if backend == "horovod":
        import horovod.torch as hvd

        return list(hvd.allgather_object(mine))
    import torch.distributed as dist

    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def meet(backend: str) -> list[int]:
    """All ranks, gathered from each."""
    return gather(backend, init(backend))


def allreduce_and_mark(backend: str, path: str) -> None:
    """Reduces in a loop, and makes a file once it is well under way."""
    import torch

    rank = init(backend)
    for step in range(1_000_000):
        if backend == "horovod":
            import horovod.torch as hvd

            hvd.allreduce(torch.ones(10), name="x")
        else:
            import torch.distributed as dist

            dist.all_reduce(torch.ones(10))
        if step == 50 and rank == 0:
            open(path, "x").close()


def fail_in_rank(backend: str, rank: int, how: str) -> None:
    """Fails in one rank while the others are in a collective operation."""
    if init(backend) == rank:
        print(f"about to {how}")
        time.sleep(0.2)
        if how == "raise":
            raise ValueError(f"the data of rank {rank} is bad")
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    allreduce_until_stopped(backend)


def start_a_sleeper_and_fail() -> None:
    """Leaves a process behind, as data loading does when its rank fails."""
    from sparkdl_runner import current_world

    subprocess.Popen(["sleep", "4711"])
    if current_world().rank == 1:
        raise ValueError("with a child")
    time.sleep(600)


def speak() -> None:
    """Prints on both streams, logs to the driver, and shows a progress bar's rewritten line."""
    from sparkdl_runner import current_world, log_to_driver

    rank = current_world().rank
    print(f"printed by {rank}")
    print(f"complaint of {rank}", file=sys.stderr)
    sys.stdout.write("10%\r50%\r100%\n")
    log_to_driver(f"message of {rank} " + "x" * 5000)
    print("no newline at the end", end="")


def return_unpicklable() -> Any:
    """Returns what cannot leave its process."""
    import threading

    return threading.Lock()


def world_size() -> int:
    """How many ranks there are, as this package says."""
    from sparkdl_runner import current_world

    return current_world().size


def sleep_in_ranks(seconds: float) -> None:
    """Holds the ranks for a while."""
    time.sleep(seconds)

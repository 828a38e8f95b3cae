"""Trainings with checkpoints that tests run as ranks; they travel by name."""

from __future__ import annotations

import os
import signal
import time
import warnings
from typing import Any


def join_ranks(backend: str) -> tuple[int, int]:
    """Initializes the backend; returns rank and size."""
    import torch

    torch.set_num_threads(1)
    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
        return hvd.rank(), hvd.size()
    import torch.distributed as dist

    if not dist.is_initialized():  # Several functions may run in turn.
        dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def in_turn(calls: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Calls functions of this module in the same ranks, since to start them takes longest."""
    return {name: globals()[name](**arguments) for name, arguments in calls.items()}


def make(backend: str, size: int = 4) -> tuple[Any, Any, Any]:
    """A model, what wraps it, and its optimizer."""
    import torch

    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(size, size), torch.nn.Dropout(0.5), torch.nn.Linear(size, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if backend == "horovod":
        import horovod.torch as hvd

        return (
            model,
            model,
            hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()),
        )
    return model, torch.nn.parallel.DistributedDataParallel(model), optimizer


def digest(model: Any) -> str:
    """Names the weights of a model, bit for bit."""
    import hashlib

    sha256 = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha256.update(tensor.detach().contiguous().numpy().tobytes())
    return sha256.hexdigest()


def train(
    backend: str,
    directory: str,
    steps: int,
    stop_signal_at: int | None = None,
    every_steps: int | None = 4,
) -> dict[str, Any]:
    """Trains with dropout, data that comes from each rank's generator, and checkpoints."""
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager, Preempted

    rank, size = join_ranks(backend)
    model, wrapped, optimizer = make(backend)
    torch.manual_seed(100 + rank)
    preempted = None
    step = 0
    dues = []
    with (
        warnings.catch_warnings(record=True) as warned,
        CheckpointManager(directory, every_steps=every_steps) as checkpoints,
    ):
        restored = checkpoints.restore(wrapped, optimizer)
        step = restored.step if restored else 0
        try:
            while step < steps:
                optimizer.zero_grad()
                wrapped(torch.randn(8, 4)).square().sum().backward()
                optimizer.step()
                step += 1
                if step == stop_signal_at and rank == size - 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                if checkpoints.due(step):
                    dues.append(step)
                    checkpoints.save(step, wrapped, optimizer, extra={"rank": rank})
        except Preempted as error:
            preempted = (error.step, error.rank, str(error))
            assert checkpoints.list()[-1].step == step
            assert checkpoints.preempted
    return gather(
        backend,
        {
            "restored": restored.step if restored else None,
            "extra": restored.extra if restored else None,
            "step": step,
            "preempted": preempted,
            "dues": dues,
            "digest": digest(model),
            "draw": float(torch.rand(())),
            "warnings": [str(one.message) for one in warned],
        },
    )


def gather(backend: str, mine: Any) -> Any:
    """What every rank has, on all of them."""
    if backend == "horovod":
        import horovod.torch as hvd

        return hvd.allgather_object(mine)
    import torch.distributed as dist

    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def save_where_only_rank_0_sees(backend: str, directory: str) -> Any:
    """Every rank has a directory of its own, as on hosts that share none."""
    from sparkdl_runner.checkpoint import CheckpointError, CheckpointManager

    rank, _ = join_ranks(backend)
    with CheckpointManager(f"{directory}/{rank}") as checkpoints:
        try:
            checkpoints.save(1, extra={"a": 1})
        except CheckpointError as error:
            return gather(backend, str(error))
    return gather(backend, "no error")


def save_without_rank_1(backend: str, directory: str, seconds: float) -> Any:
    """Rank 1 saves another step than rank 0."""
    from sparkdl_runner.checkpoint import CheckpointError, CheckpointManager
    from sparkdl_runner.checkpoint.save.policy import SavePolicy

    rank, _ = join_ranks(backend)
    found = ""
    checkpoints = CheckpointManager(directory)
    checkpoints.save(1, extra={"a": 1})
    checkpoints.wait()
    # Only now: on a busy machine a rank may be as late with what it does save.
    checkpoints._saver._policy = SavePolicy(retry_seconds=seconds, ranks_timeout_seconds=seconds)
    if rank == 0:
        checkpoints.save(2, extra={"a": 1})
        try:
            checkpoints.wait()
        except CheckpointError as error:
            found = str(error)
    everyone = gather(backend, found)
    checkpoints.close()
    return everyone


def mismatch_on_rank_1(backend: str, directory: str) -> Any:
    """Rank 1 has another model than the checkpoint."""
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager, CheckpointMismatchError

    rank, _ = join_ranks(backend)
    with CheckpointManager(directory) as checkpoints:
        model = torch.nn.Linear(2, 1 + rank)
        before = digest(model)
        try:
            checkpoints.restore(model)
        except CheckpointMismatchError as error:
            return gather(backend, (str(error), digest(model) == before))
    return gather(backend, None)


def by_the_clock(backend: str, directory: str, seconds: float) -> Any:
    """Steps that go by rank 0's clock, at another pace on each rank."""
    from sparkdl_runner.checkpoint import CheckpointManager

    rank, _ = join_ranks(backend)
    dues, began = [], time.monotonic()
    with CheckpointManager(directory, every_seconds=seconds) as checkpoints:
        for step in range(1, 40):
            time.sleep(0.01 if rank else 0.002)
            if checkpoints.due(step):
                dues.append(step)
    return gather(backend, (dues, time.monotonic() - began))


def make_sharded(width: int = 5) -> tuple[Any, Any]:
    """A model of which each rank holds a part, and its optimizer."""
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    # Odd sizes: the ranks' parts are not equal.
    model = torch.nn.Sequential(torch.nn.Linear(7, width), torch.nn.Linear(width, 3))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def restored_steps(directories: list[str]) -> Any:
    """The step that a sharded model is restored to, from each of several directories."""
    from sparkdl_runner.checkpoint import CheckpointManager

    join_ranks("torch")
    model, optimizer = make_sharded()
    steps = []
    for directory in directories:
        with CheckpointManager(directory) as checkpoints:
            steps.append(checkpoints.restore(model, optimizer).step)
    return gather("torch", steps)


def train_sharded(directory: str, steps: int, read_only: bool = False, fail: str = "") -> Any:
    """A model of which each rank holds a part."""
    import torch
    import torch.distributed as dist

    from sparkdl_runner.checkpoint import CheckpointManager, CheckpointMismatchError

    rank, size = join_ranks("torch")
    model, optimizer = make_sharded(width=6 if fail == "shape" else 5)
    with CheckpointManager(directory, every_steps=2) as checkpoints:
        try:
            restored = checkpoints.restore(model, optimizer)
        except CheckpointMismatchError as error:
            return gather("torch", str(error))
        step = restored.step if restored else 0
        while step < steps and not read_only:
            # The same global batch in every world.
            torch.manual_seed(step)
            batch = torch.randn(12, 7).chunk(size)[rank]
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            step += 1
            if checkpoints.due(step):
                checkpoints.save(step, model, optimizer, extra={"sharded": True})
        checkpoints.wait()
        problems = [checkpoints.verify(name) for name in checkpoints.list()]
    whole = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    moments = sorted(
        float(state["exp_avg"].full_tensor().double().sum()) for state in optimizer.state.values()
    )
    dist.barrier()
    return gather(
        "torch",
        {
            "restored": restored.step if restored else None,
            "extra": restored.extra if restored else None,
            "weights": {name: tensor.tolist() for name, tensor in whole.items()},
            "moments": moments,
            "problems": problems,
        },
    )


def bytes_read_on_hosts(backend: str, directory: str, hosts: int) -> Any:
    """Restores a model on ranks of which each counts as on one of so many hosts.

    Returns:
        Of each rank: the bytes that it read of the model from the storage, and its weights.
    """
    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage
    from sparkdl_runner.checkpoint.peers import Peers

    rank, size = join_ranks(backend)
    found = 0
    opened = LocalStorage.open

    def count(storage: Any, name: str) -> Any:
        nonlocal found
        file = opened(storage, name)
        found += os.fstat(file.fileno()).st_size if "/model" in name else 0
        return file

    LocalStorage.open = count  # type: ignore[method-assign]
    Peers.host_key = rank * hosts // size  # type: ignore[assignment, method-assign]
    model, _, optimizer = make(backend)
    with CheckpointManager(directory) as checkpoints:
        assert checkpoints.restore(model, optimizer).step == 1  # type: ignore[union-attr]
    return gather(backend, (found, digest(model)))

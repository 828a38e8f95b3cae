"""The ranks of these benchmarks: a loop of allreduces, perhaps with a fault in one of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RANKS = 2
LOOP_SECONDS = 2.5


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The fault of one rank."""

    name: str
    how: str
    """``kill``, ``raise``, ``exit``, ``stop``, ``sleep``, ``agent``, ``executor``, ``cancel``."""
    where: str
    """``start``, ``rendezvous``, ``allreduce``, ``data``, ``exit``, or ``random``."""
    delay_seconds: float = 0.0
    rank: int = 1


def healthy_run(backend: str) -> dict[str, float]:
    """Runs the loop without a fault; raises if it does not go through."""
    from sparkdl_runner import DistributedRunner

    rank = DistributedRunner(num_proc=RANKS, backend=backend).run(work_of_a_rank(), backend=backend)
    if rank != 0:
        raise RuntimeError(f"a healthy run returned {rank!r} in place of 0")
    return {"right": 1}


def work_of_a_rank() -> Callable[..., int]:
    """Makes the function of the ranks. It is nested, so that pickle sends its code along."""
    loop_seconds = LOOP_SECONDS

    def work(backend: str, fault: Any = None, converter: Any = None, mark: str = "") -> int:
        import atexit
        import itertools
        import signal
        import threading
        import time
        from pathlib import Path

        rank = int(os.environ["RANK"])
        mine = fault is not None and fault.rank == rank

        def strike(*_: object) -> None:
            Path(mark).write_text(repr(time.time()))
            if fault.how == "raise":
                raise ValueError("injected")
            if fault.how == "exit":
                os._exit(7)
            if fault.how == "sleep":
                time.sleep(3600)
            if fault.how in ("kill", "stop"):
                os.kill(os.getpid(), signal.SIGKILL if fault.how == "kill" else signal.SIGSTOP)
            if fault.how == "agent":
                os.kill(os.getppid(), signal.SIGKILL)
            if fault.how == "executor":
                import psutil

                parents = psutil.Process(os.getppid()).parents()
                next(one for one in parents if "java" in one.name()).kill()

        if mine and fault.where == "start":
            strike()
        if mine and fault.where == "rendezvous":
            time.sleep(0.3)  # the other rank waits for this one by now
            strike()
        if mine and fault.where == "random" and fault.how == "kill":
            threading.Timer(fault.delay_seconds, strike).start()
        if mine and fault.where == "random" and fault.how == "raise":
            signal.signal(signal.SIGALRM, strike)
            signal.setitimer(signal.ITIMER_REAL, max(0.001, fault.delay_seconds))
        if mine and fault.where == "exit":
            atexit.register(strike)

        import torch

        if backend == "horovod":
            import horovod.torch as hvd

            hvd.init()
        else:
            import torch.distributed as dist

            dist.init_process_group("gloo")

        def reduce(tensor: Any, name: str) -> Any:
            if backend == "horovod":
                return hvd.allreduce(tensor, op=hvd.Sum, name=name)
            dist.all_reduce(tensor)
            return tensor

        seconds = 0.2 if fault is None else loop_seconds + 1 if fault.where == "random" else 1
        if fault is not None and fault.how in ("stop", "sleep", "cancel", "executor", "agent"):
            seconds = 60
        if fault is not None and fault.where == "data":
            transform = strike if mine else None
            with converter.make_torch_dataloader(batch_size=64, transform=transform) as loader:
                for _ in loader:
                    reduce(torch.ones(1000), "x")
        ends_at = time.monotonic() + seconds
        for step in itertools.count():
            reduce(torch.ones(1000), "x")
            if step == 30 and mine and fault.where == "allreduce":
                strike()
            # All ranks must leave the loop at the same step: rank 0's clock decides.
            if reduce(torch.tensor([float(rank == 0 and time.monotonic() > ends_at)]), "over"):
                break
        return rank

    return work

"""Latency and bandwidth between ranks, by the library that the training uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from sparkdl_runner.rank.world import World


class Group:
    """All ranks, joined by torch.distributed or Horovod. Each makes the same calls in turn."""

    def __init__(self, world: World) -> None:
        import torch

        self._torch, self._world, self._device = torch, world, "cpu"
        if torch.cuda.is_available():
            self._device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(self._device)
        self.close: Callable[[], object]
        self._allreduce: Callable[[Any], object]
        if world.backend == "torch":
            library = torch.distributed
            library.init_process_group("gloo" if self._device == "cpu" else "nccl")
            self._allreduce, self.close = library.all_reduce, library.destroy_process_group
        else:
            import horovod.torch as horovod

            horovod.init()
            self._allreduce = partial(horovod.allreduce_, op=horovod.Sum, name="preflight")
            self._alltoall, self.close = horovod.alltoall, horovod.shutdown
        self._one = torch.zeros(1, device=self._device)

    def meet(self) -> float:
        """Waits for all ranks; returns this host's time after that."""
        self._seconds(self._allreduce, self._one)
        return time.time()

    def measure(self, size: int, most_pairs: int) -> dict[str, Any]:
        """Measures all ranks together by tensors of ``size`` bytes, and then pairs of hosts.

        Returns:
            ``latency`` in seconds and ``bandwidth`` in bytes a second of an allreduce, as "busbw"
            of https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; ``clock``, when
            some collectives have ended; and ``pairs``, both of exchanges in both directions with
            ``most_pairs`` other hosts at most, by their numbers.
        """
        world, pairs = self._world, {}
        clock = [self.meet() for _ in range(5)]
        found = self._measure(self._allreduce, size)
        found["bandwidth"] *= 2 * (world.size - 1) / world.size
        leaders = self._torch.zeros(world.num_hosts, device=self._device)
        if world.local_rank == 0:
            leaders[world.host_rank] = world.rank
        self._allreduce(leaders)
        for turn in range(min(most_pairs, world.num_hosts - 1 + world.num_hosts % 2)):
            host = partner(world.host_rank, turn, world.num_hosts)
            other = None if host is None or world.local_rank else int(leaders[host].item())
            pair = self._measure(partial(self._exchange, other), size)
            if other is not None:
                pairs[str(host)] = pair
        return {**found, "clock": clock, "pairs": pairs}

    def _measure(self, call: Callable[[Any], object], size: int) -> dict[str, float]:
        latency = median(self._seconds(call, self._one) for _ in range(10))
        tensor, took = self._torch.zeros(size // 4, device=self._device), []
        for _ in range(3):
            self.meet()
            took.append(self._seconds(call, tensor))
        return {"latency": latency, "bandwidth": size / min(took)}

    def _seconds(self, call: Callable[[Any], object], tensor: Any) -> float:
        began = time.perf_counter()
        call(tensor)
        if self._device != "cpu":
            self._torch.cuda.synchronize()
        return time.perf_counter() - began

    def _exchange(self, other: int | None, tensor: Any) -> None:
        if self._world.backend == "horovod":  # As parts of one alltoall, else of empty ones.
            sizes = self._torch.zeros(self._world.size, dtype=self._torch.int32)
            sizes[other or 0] = 0 if other is None else len(tensor)
            self._alltoall(tensor[: int(sizes.sum())], splits=sizes, name="preflight_pairs")
        elif other is not None:
            library, received = self._torch.distributed, self._torch.empty_like(tensor)
            sent = library.P2POp(library.isend, tensor, other)
            for work in library.batch_isend_irecv(
                [sent, library.P2POp(library.irecv, received, other)]
            ):
                work.wait()


def partner(own: int, turn: int, number: int) -> int | None:
    """Whom a host meets in a turn of a tournament, by the circle method; None if nobody."""
    last = number + number % 2 - 1
    other = (turn - own) % last if own != last else turn * (last + 1) // 2 % last
    other = last if other == own else other
    return other if other < number else None

"""Allreduces of growing sizes, as a script: python allreduce_script.py LIBRARY FILE BYTES...

Rank 0 writes the seconds by size, medians of rounds: ranks may meet in a later cycle for some time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, distributed

ROUNDS, BYTES = 3, 32 << 20
MOST_REPEATS = {"gloo": 1000, "nccl": 1000, "horovod": 100}
"""In each of some rounds a size is summed until these bytes are, at most so often: for tenths of a
second, if small ones are."""


def mean_seconds(
    values: Tensor, ranks: int, allreduce: Callable[[Tensor], object], most_repeats: int
) -> float:
    """The time of an allreduce of a tensor, in a row of them after one that does not count."""
    allreduce(values.fill_(1))
    if not bool((values == ranks).all()):
        raise RuntimeError(f"an allreduce of the ones of {ranks} ranks gave {values.unique()}")
    values.zero_()  # Zeros stay zeros, however often they are summed.
    repeats = max(1, min(most_repeats, BYTES // values.nbytes))
    started = time.perf_counter()
    for _ in range(repeats):
        allreduce(values)
        if values.is_cuda:
            torch.cuda.synchronize()
    return float((time.perf_counter() - started) / repeats)


if __name__ == "__main__":
    library, file, *sizes = sys.argv[1:]
    allreduce: Callable[[Tensor], object] = distributed.all_reduce
    if library == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank, ranks = hvd.rank(), hvd.size()
        allreduce = lambda values: hvd.allreduce_(values, op=hvd.Sum, name="values")  # noqa: E731
    else:
        distributed.init_process_group(library)
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
    device = f"cuda:{rank}" if library == "nccl" else "cpu"
    tensors = {size: torch.ones(int(size) // 4, device=device) for size in sizes}
    rounds = [
        {
            size: mean_seconds(values, ranks, allreduce, MOST_REPEATS[library])
            for size, values in tensors.items()
        }
        for _ in range(ROUNDS)
    ]
    found = {size: statistics.median([one[size] for one in rounds]) for size in sizes}
    if rank == 0:
        Path(file).write_text(json.dumps(found))
    if distributed.is_initialized():
        distributed.destroy_process_group()

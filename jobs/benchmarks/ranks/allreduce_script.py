"""Allreduces of growing sizes, as a script: python allreduce_script.py LIBRARY FILE BYTES...

Rank 0 writes the median seconds of an allreduce of each size to the file.
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

MOST_BYTES, MOST_REPEATS, LEAST_REPEATS = 160 << 20, 200, 3
"""Each size is summed so often that these bytes are moved, within these limits."""


def median_seconds(values: Tensor, ranks: int, allreduce: Callable[[Tensor], object]) -> float:
    """The time of an allreduce of a tensor of ones, after two that do not count."""
    allreduce(values)
    if not bool((values == ranks).all()):
        raise RuntimeError(f"an allreduce of the ones of {ranks} ranks gave {values.unique()}")
    allreduce(values.zero_())  # Zeros stay zeros, however often they are summed.
    seconds = []
    for _ in range(max(LEAST_REPEATS, min(MOST_REPEATS, MOST_BYTES // values.nbytes))):
        started = time.perf_counter()
        allreduce(values)
        if values.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


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
    found = {
        size: median_seconds(torch.ones(int(size) // 4, device=device), ranks, allreduce)
        for size in sizes
    }
    if rank == 0:
        Path(file).write_text(json.dumps(found))
    if distributed.is_initialized():
        distributed.destroy_process_group()

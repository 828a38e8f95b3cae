"""How fast ranks sum tensors, by their size: as started by this package, and by other launchers.

Two ranks of this host run one script in fresh processes. The bus bandwidth is that of NCCL's tests:
bytes / seconds x 2 (ranks - 1) / ranks, which is what crosses the slowest link, whatever the number
of ranks is. The ceiling is a copy of so many bytes in memory, by one thread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.peers.script_launchers import HERE, PEERS, RANKS, THREADS, run_script
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option

HELP = "bus bandwidth by size, beside torchrun and horovodrun"
FIGURE = Figure(unit="GB/s", better="more", least_ratios={HERE: 0.97})
LIBRARIES = ("gloo", "horovod", "nccl")
KIBIBYTES = [4**power for power in range(10)]

OPTIONS = (
    Option("turns", 6, quick=1, help="ranks that each launcher starts"),
    Option("kibibytes", KIBIBYTES, quick=[1, 1024, 65536], help="sizes"),
    Option("libraries", (), choices=LIBRARIES),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """One for each library and size. All sizes of a library are summed by the same ranks."""
    import torch

    sizes = [1024 * one for one in arguments.kibibytes]
    here = LIBRARIES[: 3 if torch.cuda.device_count() >= RANKS else 2]
    for library in arguments.libraries or here:
        peer = PEERS["horovod" if library == "horovod" else "torch"]
        takes = {one: _bandwidths(one, library, sizes) for one in (HERE, peer)}
        for size in sizes:
            yield Case(
                name=f"{library}, {size >> 10:,} KiB",
                figures={"bus bandwidth": FIGURE},
                ours={HERE: partial(takes[HERE], size)},
                peers={peer: partial(takes[peer], size)},
                limits={"memcpy": partial(_memcpy, size)},
                turns=arguments.turns,
                facts={
                    "ranks": RANKS,
                    "threads of a rank": THREADS,
                    "scaling": "weak",
                    "time": "of an allreduce in rank 0, median of rounds over all sizes",
                },
            )


def _bandwidths(launcher: str, library: str, sizes: list[int]) -> Callable[[int], dict[str, float]]:
    """Returns what gives the next bandwidth of a size: that of the n-th ranks in its n-th call."""
    found: list[dict[str, float]] = []
    calls = dict.fromkeys(sizes, 0)

    def take(size: int) -> dict[str, float]:
        if calls[size] == len(found):
            with tempfile.TemporaryDirectory(prefix="allreduce-benchmark-") as folder:
                request = [library, f"{folder}/seconds", *map(str, sizes)]
                backend = "horovod" if library == "horovod" else "torch"
                run_script(launcher, backend, "allreduce_script.py", request)
                found.append(json.loads(Path(folder, "seconds").read_text()))
        seconds = found[calls[size]][str(size)]
        calls[size] += 1
        return {"bus bandwidth": size / seconds * 2 * (RANKS - 1) / RANKS / 1e9}

    return take


def _memcpy(size: int) -> dict[str, float]:
    import torch

    values, copy = torch.ones(size // 4), torch.zeros(size // 4)
    repeats, seconds = timeit.Timer(lambda: copy.copy_(values)).autorange()
    return {"bus bandwidth": size * repeats / seconds / 1e9}

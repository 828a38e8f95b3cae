"""The parts of the benchmark. Each has ``HELP``, ``OPTIONS`` and ``cases``."""

from __future__ import annotations

from types import ModuleType

from benchmarks.parts import (
    allreduce,
    checkpoint,
    convert,
    endurance,
    faults,
    formats,
    goodput,
    launch,
    life,
    loader,
    loader_seeds,
    loader_sweep,
    memory,
    mixing,
    remote,
    scale,
    slow_rank,
    small_files,
    tracking,
    train,
    transform,
)

PARTS: dict[str, ModuleType] = {
    "launch": launch,
    "faults": faults,
    "goodput": goodput,
    "slow-rank": slow_rank,
    "life": life,
    "endurance": endurance,
    "scale": scale,
    "loader": loader,
    "loader-sweep": loader_sweep,
    "loader-seeds": loader_seeds,
    "small-files": small_files,
    "mixing": mixing,
    "convert": convert,
    "checkpoint": checkpoint,
    "tracking": tracking,
    "transform": transform,
    "formats": formats,
    "remote": remote,
    "memory": memory,
    "allreduce": allreduce,
    "train": train,
}

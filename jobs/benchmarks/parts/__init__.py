"""The parts of the benchmark. Each has ``HELP``, ``OPTIONS`` and ``cases``."""

from __future__ import annotations

from types import ModuleType

from benchmarks.parts import (
    allreduce,
    checkpoint,
    convert,
    faults,
    formats,
    goodput,
    launch,
    loader,
    loader_sweep,
    memory,
    mixing,
    remote,
    small_files,
    tracking,
    train,
    transform,
)

PARTS: dict[str, ModuleType] = {
    "launch": launch,
    "train": train,
    "allreduce": allreduce,
    "faults": faults,
    "goodput": goodput,
    "loader": loader,
    "loader-sweep": loader_sweep,
    "mixing": mixing,
    "tracking": tracking,
    "checkpoint": checkpoint,
    "remote": remote,
    "formats": formats,
    "small-files": small_files,
    "convert": convert,
    "transform": transform,
    "memory": memory,
}

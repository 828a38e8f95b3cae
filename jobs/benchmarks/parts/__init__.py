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
    "faults": faults,
    "goodput": goodput,
    "loader": loader,
    "loader-sweep": loader_sweep,
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

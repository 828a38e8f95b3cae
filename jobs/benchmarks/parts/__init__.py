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

_IN_ORDER = (
    *(launch, train, allreduce, faults, goodput, loader, loader_sweep, mixing, tracking),
    *(checkpoint, remote, formats, small_files, convert, transform, memory),
)
PARTS: dict[str, ModuleType] = {
    one.__name__.rpartition(".")[2].replace("_", "-"): one for one in _IN_ORDER
}

"""The parts of the benchmark. Each has ``HELP``, ``QUICK``, ``add_arguments`` and ``cases``."""

from __future__ import annotations

from types import ModuleType

from benchmarks.parts import allreduce, launch, train

PARTS: dict[str, ModuleType] = {
    "launch": launch,
    "allreduce": allreduce,
    "train": train,
}

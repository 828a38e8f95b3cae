"""The parts of the benchmark. Each has ``HELP``, ``QUICK``, ``add_arguments`` and ``cases``."""

from __future__ import annotations

from types import ModuleType

from benchmarks.parts import launch, loader, loader_seeds, loader_sweep, mixing, small_files

PARTS: dict[str, ModuleType] = {
    "launch": launch,
    "loader": loader,
    "loader-sweep": loader_sweep,
    "loader-seeds": loader_seeds,
    "small-files": small_files,
    "mixing": mixing,
}

"""The parts of the benchmark. Each has ``HELP``, ``QUICK``, ``add_arguments`` and ``cases``."""

from __future__ import annotations

from types import ModuleType

from benchmarks.parts import checkpoint, convert, launch, tracking, transform

PARTS: dict[str, ModuleType] = {
    "launch": launch,
    "convert": convert,
    "checkpoint": checkpoint,
    "tracking": tracking,
    "transform": transform,
}

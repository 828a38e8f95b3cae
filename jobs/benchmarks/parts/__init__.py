"""The parts of the benchmark. Each has ``HELP``, ``QUICK``, ``add_arguments`` and ``cases``."""

from __future__ import annotations

from types import ModuleType

from benchmarks.parts import formats, launch, memory, remote

PARTS: dict[str, ModuleType] = {
    "launch": launch,
    "formats": formats,
    "remote": remote,
    "memory": memory,
}

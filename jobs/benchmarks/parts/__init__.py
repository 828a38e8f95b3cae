"""The parts of the benchmark. Each has ``HELP``, ``QUICK``, ``add_arguments`` and ``cases``."""

from __future__ import annotations

from types import ModuleType

from benchmarks.parts import images, launch, memory, remote, text

PARTS: dict[str, ModuleType] = {
    "launch": launch,
    "images": images,
    "text": text,
    "remote": remote,
    "memory": memory,
}

"""The parts of the benchmark. Each has ``HELP``, ``OPTIONS`` and ``cases``."""

from __future__ import annotations

from importlib import import_module

_IN_ORDER = (
    *("launch", "train", "allreduce", "faults", "goodput", "loader", "loader-sweep", "mixing"),
    *("tracking", "checkpoint", "remote", "formats", "small-files", "convert", "transform"),
    "memory",
)
PARTS = {name: import_module(f"{__name__}.{name.replace('-', '_')}") for name in _IN_ORDER}

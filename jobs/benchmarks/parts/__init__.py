"""The parts of the benchmark. Each has ``HELP``, ``OPTIONS`` and ``cases``."""

from __future__ import annotations

from importlib import import_module

_IN_ORDER = """
    launch train allreduce faults goodput loader loader-sweep mixing tracking
    checkpoint remote formats small-files convert transform memory
"""
PARTS = {one: import_module(f"{__name__}.{one.replace('-', '_')}") for one in _IN_ORDER.split()}

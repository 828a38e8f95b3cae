"""The parts of the benchmark. Each has ``HELP``, ``QUICK``, ``add_arguments`` and ``cases``."""

from __future__ import annotations

from types import ModuleType

from benchmarks.parts import endurance, faults, goodput, launch, life, scale, slow_rank

PARTS: dict[str, ModuleType] = {
    "launch": launch,
    "faults": faults,
    "goodput": goodput,
    "slow-rank": slow_rank,
    "life": life,
    "endurance": endurance,
    "scale": scale,
}

"""Scaling efficiency, which is quoted only where every rank has a physical core of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.suite.machine import machine

ONE_RANK = "one_rank_case"
"""The fact that names the case of the same part in which one rank does this work."""


def scaling_efficiency(case: Mapping[str, Any], one: Mapping[str, Any] | None) -> Any:
    """How much of its own speed each rank keeps beside the others; 1 is perfect.

    Args:
        case: The report of a case, whose fact ``scaling`` says whether the work grows with the
            ranks (``"weak"``) or is shared by them (``"strong"``).
        one: That of the same work of one rank, if it was measured.

    Returns:
        By figure and side, of figures in seconds and of rates, which count the work of all ranks;
        or a sentence on why there is none; or None where nothing is to be said.
    """
    ranks, cores = case["facts"].get("ranks", 1), machine()["physical_cores"]
    if isinstance(ranks, int) and ranks > cores:
        return f"not quoted: {ranks} ranks share {cores} physical cores"
    if one is None or ranks == 1:
        return None
    found: dict[str, dict[str, float]] = {}
    for name, figure in case["figures"].items():
        alone = one["figures"].get(name, {"sides": {}})["sides"]
        for side in figure["sides"].keys() & alone.keys():
            now, before = figure["sides"][side]["median"], alone[side]["median"]
            if figure["unit"].endswith("/s"):
                found.setdefault(name, {})[side] = now / before / ranks
            elif figure["unit"] == "s":
                shares = 1 if case["facts"]["scaling"] == "weak" else ranks
                found.setdefault(name, {})[side] = before / now / shares
    return found

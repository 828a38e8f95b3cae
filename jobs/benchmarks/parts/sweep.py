"""The loader on random tables with random settings, beside petastorm and a loop written by hand.

The worst case counts here, not the median of friendly ones. Each reading is that of a fresh process
with a fresh loader, for one epoch of one shard, the same shard for all; sides take turns. No memory
is warmed or held for any. What is compared is the processor time of a row: user and system, of all
threads, from making the loader to the last batch; imports are made before.

petastorm reads no texts and no ragged lists into tensors, and no shard without a row group: it is
left out there. The loop by hand is in ``sweep_rank.py``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import aligned, in_turns, positive, ratio
from benchmarks.ranks.processes import in_fresh_process
from benchmarks.tables.sweep_tables import shape, write

ENGINES = ("ours", "naive", "petastorm")
PEERS = ENGINES[1:]
JUDGED_ROWS = 200_000
"""Tables of so many rows and more have to keep the bounds."""
WORST_TIMES_NAIVE, MEDIAN_TIMES_NAIVE = 1.0, 1.5
_UNREAD = ("texts", "ragged")
"""Kinds of tables that petastorm makes no tensors of."""
_SHOWN = 10
_PRELOADED = ("benchmarks.ranks.sweep_rank", "petastorm.pytorch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the sweep."""
    parser.add_argument("--sweep", type=positive, help="read so many random tables instead")
    parser.add_argument("--sweep-only", type=int, nargs="+", help="only these of them, from 0")
    parser.add_argument("--seed", type=int, default=1, help="of the random tables")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Writes each table, reads it with each engine in turn, and removes it."""
    results = []
    for index in arguments.sweep_only or range(arguments.sweep):
        one = shape(arguments.seed, index)
        print(_settings(one), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            write(one, Path(folder))
            request = {**one, "folder": folder}
            engines = [e for e in ENGINES if e != "petastorm" or one["kind"] not in _UNREAD]
            reads = {engine: partial(read_once, engine, request) for engine in engines}
            found = in_turns(reads, arguments.rounds, warm_up=False)
        results.append({**one, **_figures(found)})
        print(f"  {_times(results[-1])}", flush=True)
    return {"results": results, "times": _all_times(results)}


def read_once(engine: str, request: Mapping[str, Any]) -> dict[str, float]:
    """Reads one shard with a fresh loader in a fresh process."""
    from benchmarks.ranks.sweep_rank import read  # It imports what only readers need.

    return in_fresh_process(read, engine, request, preloaded=_PRELOADED)


def _figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """The medians of each engine, and how many times more processor time the peers need."""
    figures: dict[str, Any] = {}
    costs: dict[str, list[float]] = {}
    for engine, rounds in found.items():
        if isinstance(rounds, str):
            figures[engine] = {"skipped": rounds}
            continue
        costs[engine] = [one["cpu_seconds"] / max(one["rows"], 1) for one in rounds]
        medians = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        figures[engine] = {**medians, "cpu_nanoseconds_of_a_row": 1e9 * np.median(costs[engine])}
    for peer in PEERS:
        if peer in costs and "ours" in costs:
            figures[f"times_{peer}"] = round(ratio(costs[peer], costs["ours"]), 3)
    return figures


def _all_times(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Worst, 5 % and median against each peer, of all tables and of those that are judged."""
    judged = [one for one in results if one["rows"] >= JUDGED_ROWS]
    found = {}
    for peer in PEERS:
        for name, some in (("all", results), (f"{JUDGED_ROWS:,} rows or more", judged)):
            if times := [one[f"times_{peer}"] for one in some if f"times_{peer}" in one]:
                found[f"{peer}, {name}"] = {
                    "tables": len(times),
                    "worst": min(times),
                    "5 %": float(np.quantile(times, 0.05)),
                    "median": statistics.median(times),
                }
    return found


def table(report: Mapping[str, Any]) -> str:
    """The worst, 5 % and median of all tables, and the settings of the worst ten for each peer."""
    rows: list[tuple[str, ...]] = [
        ("processor time, peer / ours", "tables", "worst", "5 %", "median")
    ]
    for name, one in report["times"].items():
        rows.append((name, str(one["tables"]), *(f"{one[key]:.2f}" for key in rows[0][2:])))
    lines = [aligned(rows)]
    for peer in PEERS:
        some = [one for one in report["results"] if f"times_{peer}" in one]
        some.sort(key=lambda one: one[f"times_{peer}"])
        lines.append(f"\nThe worst beside {peer} (again: --seed S --sweep-only INDEX):")
        lines += [f"  {_times(one)}  {_settings(one)}" for one in some[:_SHOWN]]
    for one in report["results"]:
        if "skipped" in one["ours"]:
            lines.append(f"Not read: {_settings(one)}: {one['ours']['skipped']}")
    return "\n".join(lines)


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether ours gave all figures, and those that are judged keep to the bounds."""
    judged = report["times"].get(f"naive, {JUDGED_ROWS:,} rows or more")
    return not any("skipped" in one["ours"] for one in report["results"]) and (
        judged is None
        or (judged["worst"] >= WORST_TIMES_NAIVE and judged["median"] >= MEDIAN_TIMES_NAIVE)
    )


def _settings(one: Mapping[str, Any]) -> str:
    names = ("kind", "rows", "files", "groups", "compression", "world", "shard", "batch")
    said = " ".join(f"{name}={one[name]}" for name in names)
    return f"#{one['index']} {said} {'shuffled' if one['shuffle'] else 'in order'}"


def _times(one: Mapping[str, Any]) -> str:
    return ", ".join(f"{one.get(f'times_{peer}', float('nan')):.2f} x {peer}" for peer in PEERS)

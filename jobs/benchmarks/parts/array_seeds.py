"""Arrays in few large row groups, as a conversion by default has them, for many seeds.

Two shards are read one after the other, each by a fresh process with a fresh loader, for one epoch;
engines take turns. The order of rows follows from the seed, and so did the speed at times: the
worst seed counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import aligned, in_turns, positive
from benchmarks.parts.sweep import read_once
from benchmarks.tables.sweep_tables import write

_SHARDS = 2
_CASE = {
    "index": 0,
    "kind": "arrays",
    "files": 8,
    "groups": 1,
    "compression": "none",
    "world": _SHARDS,
    "batch": 1024,
    "shuffle": True,
}
WORST_TIMES, MOST_SECONDS = 3.0, 0.3
"""Goals for the worst seed: rows/s relative to petastorm's, and seconds to the first batch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this case."""
    parser.add_argument("--array-seeds", type=positive, help="read arrays with so many seeds")
    parser.add_argument("--array-rows", type=positive, default=1_000_000)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Writes the table, and reads it with each seed."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        request = {**_CASE, "rows": arguments.array_rows, "folder": folder}
        write(request, Path(folder))
        for seed in range(1, arguments.array_seeds + 1):
            reads = {
                engine: partial(_both_shards, engine, {**request, "seed": seed})
                for engine in ("ours", "petastorm")
            }
            results.append({"seed": seed, **_figures(in_turns(reads, 1, warm_up=False))})
            print(f"seed {seed}: {results[-1]}", flush=True)
    return {"results": results}


def _both_shards(engine: str, request: Mapping[str, Any]) -> dict[str, float]:
    read = [read_once(engine, {**request, "shard": shard}) for shard in range(_SHARDS)]
    rows = sum(one["rows"] for one in read)
    return {
        "rows_per_second": rows / sum(one["seconds"] for one in read),
        "rows_per_cpu_second": rows / sum(one["cpu_seconds"] for one in read),
        "first_batch_seconds": max(one["first_batch_seconds"] for one in read),
    }


def _figures(found: Mapping[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for engine, rounds in found.items():
        figures[engine] = {"skipped": rounds} if isinstance(rounds, str) else rounds[0]
    if not any("skipped" in one for one in figures.values()):
        ours, theirs = figures["ours"], figures["petastorm"]
        for name, key in (("times", "rows_per_second"), ("cpu_times", "rows_per_cpu_second")):
            figures[name] = ours[key] / theirs[key]
    return figures


def table(report: Mapping[str, Any]) -> str:
    """The worst and the median seed."""
    ours = [one["ours"] for one in report["results"] if "skipped" not in one["ours"]]
    rows: list[tuple[str, ...]] = [("", "worst seed", "median")]
    for key in ("rows_per_second", "rows_per_cpu_second"):
        values = [one[key] for one in ours]
        rows.append((key, f"{min(values):,.0f}", f"{statistics.median(values):,.0f}"))
    seconds = [one["first_batch_seconds"] for one in ours]
    rows.append(("first batch", f"{max(seconds):.2f} s", f"{statistics.median(seconds):.2f} s"))
    for key, name in (("times", "by the clock"), ("cpu_times", "by processor time")):
        if times := [one[key] for one in report["results"] if key in one]:
            worst, median = min(times), statistics.median(times)
            rows.append((f"times petastorm, {name}", f"{worst:.2f}", f"{median:.2f}"))
    return aligned(rows)


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether each seed keeps to the bounds; of petastorm only where it is installed."""
    return all(
        "skipped" not in one["ours"]
        and one["ours"]["first_batch_seconds"] <= MOST_SECONDS
        and one.get("times", WORST_TIMES) >= WORST_TIMES
        for one in report["results"]
    )

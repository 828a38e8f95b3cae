"""Folders of many small files, as streams leave them: opening, and the first batch.

Each step is done by a fresh process, on the same files, which the system has in memory. A folder of
200,000 files is a projection from the two largest that were measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import aligned, in_turns, positive, summary
from benchmarks.ranks.processes import in_fresh_process

_ROWS = 50
"""Of each file."""
_PROJECTED = 200_000
_PRELOADED = (
    __name__,
    "benchmarks.ranks.sweep_rank",
    "pyarrow.dataset",
    "sparkdl_runner.data.convert.converter",
)
MOST_TIMES_FOOTERS, MOST_SECONDS = 2.0, 1.0
"""Goals: the time to describe, relative to plain footers, and seconds to the first batch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this case."""
    parser.add_argument("--small-files", type=positive, nargs="+", help="so many files in a folder")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Writes each folder, and takes each step on it in turn."""
    results = []
    for files in sorted(arguments.small_files):
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), files)
            steps = {
                name: partial(in_fresh_process, step, folder, preloaded=_PRELOADED)
                for name, step in _STEPS.items()
            }
            print(f"{files:,} files:", flush=True)
            found = in_turns(steps, arguments.rounds, warm_up=False)
        results.append({"files": files, **{name: summary(one) for name, one in found.items()}})
    return {"results": results, "projected": _projected(results)}


def _write(folder: Path, files: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    for number in range(files):
        columns = {name: random.integers(0, 1 << 40, _ROWS) for name in ("user", "item")}
        pq.write_table(pa.table(columns), folder / f"part-{number:06}.parquet")


def _plain_footers(folder: str) -> float:
    import pyarrow.parquet as pq

    began = time.perf_counter()
    for path in Path(folder).iterdir():
        pq.read_metadata(path)
    return time.perf_counter() - began


def _count_rows(folder: str) -> float:
    import pyarrow.dataset

    began = time.perf_counter()
    pyarrow.dataset.dataset(folder).count_rows()
    return time.perf_counter() - began


def _describe(folder: str) -> float:
    from sparkdl_runner.data.convert.converter import make_spark_converter

    began = time.perf_counter()
    make_spark_converter(folder)
    return time.perf_counter() - began


def _first_batch(folder: str) -> float:
    from sparkdl_runner.data.convert.converter import make_spark_converter

    converter = make_spark_converter(folder)
    began = time.perf_counter()
    with converter.make_torch_dataloader(batch_size=256, num_epochs=1) as loader:
        next(iter(loader))
        return time.perf_counter() - began


_STEPS: dict[str, Callable[[str], float]] = {
    "plain footers": _plain_footers,
    "Arrow's count_rows": _count_rows,
    "describing": _describe,
    "first batch": _first_batch,
}


def _projected(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds for 200,000 files, along the line through the two largest folders."""
    if len(results) < 2:
        return {}
    low, high = results[-2:]
    projected = {}
    for name in _STEPS:
        if "median" in low[name] and "median" in high[name]:
            a_file = (high[name]["median"] - low[name]["median"]) / (high["files"] - low["files"])
            projected[name] = high[name]["median"] + a_file * (_PROJECTED - high["files"])
    return projected


def table(report: Mapping[str, Any]) -> str:
    """Seconds of each step, by files."""
    rows: list[tuple[str, ...]] = [("seconds", *_STEPS)]
    for one in report["results"]:
        cells = (f"{one[name]['median']:.2f}" if "median" in one[name] else "-" for name in _STEPS)
        rows.append((f"{one['files']:,} files", *cells))
    if report["projected"]:
        cells = (f"{report['projected'].get(name, float('nan')):.1f}" for name in _STEPS)
        rows.append((f"{_PROJECTED:,} files, projected", *cells))
    return aligned(rows)


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether describing and the first batch keep to their bounds."""
    return all(
        "median" in one["describing"]
        and "median" in one["first batch"]
        and one["describing"]["median"] <= MOST_TIMES_FOOTERS * one["plain footers"]["median"]
        and one["first batch"]["median"] <= MOST_SECONDS
        for one in report["results"]
    )

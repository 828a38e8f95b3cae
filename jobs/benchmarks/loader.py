"""Loaders beside each other: rows/s, MB/s and memory of every engine, on the same files.

Every measurement is a set of fresh processes, one per rank, which start reading together; engines
take turns within each round, and medians over the rounds are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.loader_tables import TABLES, write_table

_READERS = Path(__file__).with_name("loader_readers.py")
ENGINES = ("arrow", "petastorm_batched", "petastorm_row", "naive", "decode_only")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=[*ENGINES])
    parser.add_argument("--rows", type=int, default=2_000_000, help="images: a hundredth of it")
    parser.add_argument("--row-loader-rows", type=int, default=50_000, help="petastorm_row stops")
    parser.add_argument("--files", type=int, default=8, help="files of each table")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers-count", type=int, default=2)
    parser.add_argument("--shuffling-queue-capacity", type=int, default=50_000)
    parser.add_argument("--data", default=None, help="directory for the files; kept if given")
    parser.add_argument(
        "--output", type=Path, default=Path("benchmark-loader.json"), help="the JSON file"
    )


def add_parser(benchmarks: Any) -> None:
    """Adds this benchmark to the command line."""
    parser = benchmarks.add_parser("loader", help="batches, beside petastorm's loaders")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the benchmark; returns the exit status."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.data or temporary)
        results = []
        for table in arguments.tables:
            files = arguments.files
            rows = max(arguments.rows // (100 if table == "image" else 1), files)
            here = directory / f"{table}-{rows}-{files}"
            write_table(table, here, rows=rows, files=files)
            results += _table(arguments, table, here)
    report = {
        "command": "jobs/benchmark.py loader",
        "cores": len(os.sched_getaffinity(0)),
        "settings": {
            key: value for key, value in vars(arguments).items() if key in _REPORTED_SETTINGS
        },
        "results": results,
    }
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    _show(results)
    print(f"\nWritten to {arguments.output}")
    return 0


def _show(results: list[dict[str, Any]]) -> None:
    """Prints the table for a person."""
    head = ("rows/s", "MB/s", "peak MB", "first batch")
    others = "petastorm Batched, row loader, decode only"
    print(f"\n{'':<28}{head[0]:>12}{head[1]:>8}{head[2]:>9}{head[3]:>13}   times {others}")
    for one in results:
        name = f"{one['table']}: {one['engine']}"
        if "skipped" in one:
            print(f"{name:<28} unavailable: {one['skipped']}")
            continue
        times = (
            one.get(f"times_{of}") for of in ("petastorm_batched", "petastorm_row", "decode_only")
        )
        ratios = ", ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in times)
        print(
            f"{name:<28}{one['rows_per_second']:>12,}{one['megabytes_per_second']:>8,.0f}"
            f"{one['peak_rss_megabytes']:>9,}{one['first_batch_seconds']:>11.2f} s   {ratios}"
        )


_REPORTED_SETTINGS = (
    "rows",
    "files",
    "batch_size",
    "ranks",
    "rounds",
    "epochs",
    "workers_count",
    "shuffling_queue_capacity",
)


def _table(arguments: argparse.Namespace, table: str, directory: Path) -> list[dict[str, Any]]:
    engines = list(arguments.engines)
    if table == "scalar" and "arrow" in engines:
        engines.insert(engines.index("arrow") + 1, "arrow_matrix")
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    skipped: dict[str, str] = {}
    for round_number in range(arguments.rounds):
        for engine in engines:
            if engine in skipped:
                continue
            try:
                measured = _ranks(arguments, table, engine, directory)
            except _UnavailableError as error:
                skipped[engine] = str(error)
                continue
            found[engine].append(measured)
            print(
                f"{table}, round {round_number + 1}, {engine}: "
                f"{measured['rows_per_second']:,.0f} rows/s",
                file=sys.stderr,
            )
    row_bytes = TABLES[table][1]
    results = []
    for engine, rounds in found.items():
        entry: dict[str, Any] = {"table": table, "engine": engine}
        if engine in skipped:
            results.append({**entry, "skipped": skipped[engine]})
            continue
        # Beside the time on the wall, the time on the processors: what else runs on the machine
        # changes the first far more than the second.
        per_cpu = statistics.median(one["rows_per_cpu_second"] for one in rounds)
        speed = statistics.median(one["rows_per_second"] for one in rounds)
        entry |= {
            "rows_per_second": round(speed),
            "rows_per_cpu_second": round(per_cpu),
            "megabytes_per_second": round(speed * row_bytes / 1e6, 1),
            "first_batch_seconds": round(
                statistics.median(one["first_batch_seconds"] for one in rounds), 3
            ),
            "peak_rss_megabytes": round(statistics.median(one["peak_rss"] for one in rounds) / 1e6),
            "all_rows_per_second": [round(one["rows_per_second"]) for one in rounds],
        }
        # Of the same round, as the machine may be busier in one round than in the next.
        for other in ("petastorm_batched", "petastorm_row", "decode_only"):
            if other == engine or not found.get(other):
                continue
            for key, name in (("rows_per_second", "times"), ("rows_per_cpu_second", "cpu_times")):
                ratios = [
                    mine[key] / theirs[key]
                    for mine, theirs in zip(rounds, found[other], strict=True)
                ]
                entry[f"{name}_{other}"] = round(statistics.median(ratios), 2)
        results.append(entry)
    return results


class _UnavailableError(Exception):
    """An engine that cannot run here, and why."""


def _ranks(
    arguments: argparse.Namespace, table: str, engine: str, directory: Path
) -> dict[str, float]:
    """One measurement: all ranks start together, each a process of its own."""
    processes = []
    for rank in range(arguments.ranks):
        request = {
            "table": table,
            "engine": engine,
            "directory": str(directory),
            "rank": rank,
            "ranks": arguments.ranks,
            "batch_size": arguments.batch_size,
            "epochs": arguments.epochs,
            "workers_count": arguments.workers_count,
            "capacity": arguments.shuffling_queue_capacity,
            "row_limit": arguments.row_loader_rows if engine == "petastorm_row" else None,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, str(_READERS), json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for process in processes:
            line = process.stdout.readline() if process.stdout else ""
            if line.startswith("unavailable"):
                raise _UnavailableError(line.partition(" ")[2].strip())
            if line != "ready\n":
                raise RuntimeError(f"{engine}: {process.communicate()[1][-2000:]}")
        for process in processes:
            if process.stdin is not None:
                process.stdin.write("go\n")
                process.stdin.flush()
        answers = []
        for process in processes:
            output, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{engine}: {errors[-2000:]}")
            answers.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return {
        "rows_per_second": sum(one["rows"] for one in answers)
        / max(one["seconds"] for one in answers),
        "rows_per_cpu_second": sum(one["rows"] for one in answers)
        / sum(one["cpu_seconds"] for one in answers),
        "first_batch_seconds": max(one["first_batch_seconds"] for one in answers),
        "peak_rss": max(one["peak_rss"] for one in answers),
    }

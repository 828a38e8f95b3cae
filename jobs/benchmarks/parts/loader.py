"""Loaders beside each other: rows/s, MB/s and memory of every engine, on the same files.

Every measurement is a set of fresh processes, one per rank, which start reading together; engines
take turns, and medians over the rounds are reported. Packed documents are counted in tokens.

With ``--sweep N`` random tables are read with random settings instead, and the worst case counts;
with ``--array-seeds N`` arrays in few large row groups are read with seeds 1 to N; with
``--small-files 2000 20000`` folders of so many files are opened.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.parts import array_seeds, small_files, sweep
from benchmarks.figures import aligned, in_turns, positive, ratio, result_rows
from benchmarks.tables.loader_tables import TABLES, TOKEN_BYTES, write_table
from benchmarks.ranks.processes import last_line, module_command, module_environment

HELP = "batches, beside petastorm's loaders"
ENGINES = (
    "arrow",
    "petastorm_batched",
    "petastorm_row",
    "naive",
    "decode_only",
    "hugging_face",
)
PEERS = ("petastorm_batched", "petastorm_row", "naive", "decode_only", "hugging_face")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=[*ENGINES])
    parser.add_argument(
        "--rows",
        type=positive,
        default=2_000_000,
        help="images: a hundredth of it; packed: a tenth",
    )
    parser.add_argument(
        "--row-loader-rows", type=positive, default=50_000, help="petastorm_row stops"
    )
    parser.add_argument("--files", type=positive, default=8, help="files of each table")
    parser.add_argument("--batch-size", type=positive, default=1024)
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--epochs", type=positive, default=1)
    parser.add_argument("--workers-count", type=positive, default=2)
    parser.add_argument("--shuffling-queue-capacity", type=positive, default=50_000)
    parser.add_argument("--data", default=None, help="directory for the files; kept if given")
    sweep.add_arguments(parser)
    array_seeds.add_arguments(parser)
    small_files.add_arguments(parser)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Reads each table with each engine."""
    if (other := _other(vars(arguments))) is not None:
        found: dict[str, Any] = other.measure(arguments)
        return found
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        for table in arguments.tables:
            files = arguments.files
            rows = max(arguments.rows // {"image": 100, "packed": 10}.get(table, 1), files)
            folder = Path(arguments.data or temporary).resolve() / f"{table}-{rows}-{files}"
            write_table(table, folder, rows=rows, files=files)
            engines = list(arguments.engines)
            if table == "scalar" and "arrow" in engines:
                engines.insert(engines.index("arrow") + 1, "arrow_matrix")
            print(f"{table}:", flush=True)
            reads = {engine: partial(_read, arguments, table, engine, folder) for engine in engines}
            results += _results(table, in_turns(reads, arguments.rounds, warm_up=False))
    return {"results": results}


def _other(settings: Mapping[str, Any]) -> Any:
    """The module that measures in place of this one, if one was asked for."""
    if settings["sweep"] or settings["sweep_only"]:
        return sweep
    if settings["array_seeds"]:
        return array_seeds
    return small_files if settings["small_files"] else None


def _results(table: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The medians of a table's engines, and their ratios to the peers that could be measured."""
    results = []
    for engine, rounds in found.items():
        entry: dict[str, Any] = {"table": table, "engine": engine}
        results.append(entry)
        if isinstance(rounds, str):
            entry["skipped"] = rounds
            continue
        figures = {key: [one[key] for one in rounds] for key in rounds[0]}
        medians = {key: statistics.median(values) for key, values in figures.items()}
        speed = medians["rows_per_second"]
        entry |= {
            "rows_per_second": round(speed),
            # Other programs change this far less than the time on the clock.
            "rows_per_cpu_second": round(medians["rows_per_cpu_second"]),
            "megabytes_per_second": round(speed * _counted_bytes(table) / 1e6, 1),
            "first_batch_seconds": round(medians["first_batch_seconds"], 3),
            "peak_rss_megabytes": round(medians["peak_rss"] / 1e6),
            "all_rows_per_second": list(map(round, figures["rows_per_second"])),
        }
        for peer in PEERS:
            theirs = found.get(peer)
            if peer == engine or not isinstance(theirs, list):
                continue
            for key, name in (("rows_per_second", "times"), ("rows_per_cpu_second", "cpu_times")):
                entry[f"{name}_{peer}"] = round(
                    ratio(figures[key], [one[key] for one in theirs]), 2
                )
    return results


def _counted_bytes(table: str) -> int:
    return TOKEN_BYTES if table == "packed" else TABLES[table][1]


def table(report: Mapping[str, Any]) -> str:
    """All tables and engines, with how many times faster each is than the peers."""
    if (other := _other(report["settings"])) is not None:
        return str(other.table(report))
    heads = ("rows/s", "MB/s", "peak MB", "first batch")
    peers = ("times petastorm Batched", "row loader", "naive", "decode only", "Hugging Face")
    rows: list[tuple[str, ...]] = [("", *heads, *peers)]
    return aligned(rows + result_rows(report["results"], "{table}: {engine}", _cells))


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    times = (one.get(f"times_{peer}") for peer in PEERS)
    return (
        f"{one['rows_per_second']:,}",
        f"{one['megabytes_per_second']:,.0f}",
        f"{one['peak_rss_megabytes']:,}",
        f"{one['first_batch_seconds']:.2f} s",
        *("-" if value is None else f"{value:.2f}" for value in times),
    )


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether this package's engines gave their figures, and kept to bounds where there are any."""
    if (other := _other(report["settings"])) is not None:
        return bool(other.is_good(report))
    ours = [one for one in report["results"] if one["engine"].startswith("arrow")]
    return not any("skipped" in one for one in ours)


def _read(arguments: argparse.Namespace, table: str, engine: str, folder: Path) -> dict[str, float]:
    """One measurement: all ranks start together, each a process of its own.

    Raises:
        RuntimeError: A rank cannot read.
    """
    request = {
        "table": table,
        "engine": engine,
        "directory": str(folder),
        "ranks": arguments.ranks,
        "batch_size": arguments.batch_size,
        "epochs": arguments.epochs,
        "workers_count": arguments.workers_count,
        "capacity": arguments.shuffling_queue_capacity,
        "row_limit": arguments.row_loader_rows if engine == "petastorm_row" else None,
    }
    processes = [
        subprocess.Popen(
            module_command("ranks.loader_readers", json.dumps({**request, "rank": rank})),
            env=module_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(arguments.ranks)
    ]
    try:
        for process in processes:
            if (line := process.stdout.readline()) != "ready\n":  # type: ignore[union-attr]
                raise RuntimeError(line.strip() or last_line(process.communicate()[1]))
        for process in processes:
            process.stdin.write("go\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        answers = []
        for process in processes:
            output, errors = process.communicate()
            if process.returncode:
                raise RuntimeError(last_line(errors))
            answers.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    rows = sum(one["rows"] for one in answers)
    return {
        "rows_per_second": rows / max(one["seconds"] for one in answers),
        "rows_per_cpu_second": rows / sum(one["cpu_seconds"] for one in answers),
        "first_batch_seconds": max(one["first_batch_seconds"] for one in answers),
        "peak_rss": max(one["peak_rss"] for one in answers),
    }

"""The memory of reading in a rank, compared with the loader's budget.

The peak of a fresh process while it reads one epoch, less what it had with all imports before the
loader was made. A budget of None is the default, whose order and figures are those of 512 MiB.
Tables are read from the local disk, and with ``--storage s3`` from a server in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import aligned, in_turns, positive, result_rows
from benchmarks.tables.memory_tables import TABLES
from benchmarks.servers.object_store import ObjectStore, object_store
from benchmarks.ranks.processes import answer_of

HELP = "the memory of a rank, beside its budget"
_MIB = 1 << 20
_DEFAULT_BYTES = 512 * _MIB
_MOST = 1.1
_BUCKET = "tables"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument(
        "--budgets", nargs="+", type=int, default=[0, 512, 128, 64], help="MiB; 0: the default"
    )
    parser.add_argument("--storage", nargs="+", default=["local"], choices=["local", "s3"])
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows of each table")
    parser.add_argument("--rounds", type=positive, default=1)
    parser.add_argument("--data", default=None, help="directory for the files; kept if given")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Reads each table from each storage with each budget."""
    results = []
    for name in arguments.tables:
        count = max(1, int(TABLES[name].rows * arguments.scale))
        with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
            kept = Path(arguments.data).resolve() if arguments.data else Path(temporary)
            folder = kept / f"memory-{name}-{count}"
            TABLES[name].write(folder, count)
            places: dict[str, dict[str, Any]] = {"local": {"directory": str(folder)}}
            if "s3" in arguments.storage:
                places["s3"] = _upload(stack.enter_context(object_store(remembers=False)), folder)
            reads = {
                f"{storage} {budget}": partial(_read, name, places[storage], budget * _MIB or None)
                for storage in arguments.storage
                for budget in arguments.budgets
            }
            print(f"{name}, {count:,} rows:", flush=True)
            found = in_turns(reads, arguments.rounds, warm_up=False)
            for key, rounds in found.items():
                storage, _, budget = key.partition(" ")
                results.append(_result(name, storage, count, int(budget), rounds))
    return {"results": results}


def _upload(store: ObjectStore, folder: Path) -> dict[str, Any]:
    """Puts a table's files into the store, and returns where they are."""
    import pyarrow as pa
    import pyarrow.fs

    filesystem = pa.fs.S3FileSystem(**store.options(store.behind), allow_bucket_creation=True)
    filesystem.create_dir(_BUCKET)
    for path in folder.iterdir():
        with (
            path.open("rb") as source,
            filesystem.open_output_stream(f"{_BUCKET}/{path.name}") as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
    return {"directory": _BUCKET, "s3": store.options()}


def _read(name: str, place: Mapping[str, Any], budget: int | None) -> dict[str, Any]:
    return answer_of("ranks.memory_rank", {**place, "budget": budget, "arguments": TABLES[name].reading})


def _result(
    name: str, storage: str, rows: int, budget: int, found: list[dict[str, float]] | str
) -> dict[str, Any]:
    entry: dict[str, Any] = {"table": name, "storage": storage, "rows": rows, "budget_mib": budget}
    if isinstance(found, str):
        return {**entry, "skipped": found}
    peak = max(one["reading_bytes"] for one in found)
    asked = budget * _MIB or _DEFAULT_BYTES
    return {
        **entry,
        "base_bytes": max(one["base_bytes"] for one in found),
        "reading_bytes": peak,
        "share": round(peak / asked, 3),
        "is_within": peak <= _MOST * asked + TABLES[name].spare_bytes,
        "seconds": statistics.median(one["seconds"] for one in found),
    }


def table(report: Mapping[str, Any]) -> str:
    """All tables and budgets."""
    rows: list[tuple[str, ...]] = [
        ("", "budget MiB", "reading MiB", "of the budget", "base MiB", "within")
    ]
    return aligned(
        rows + result_rows(report["results"], "{table}, {storage}: {rows:,} rows", _cells)
    )


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(one["budget_mib"] or "default"),
        f"{one['reading_bytes'] / _MIB:,.0f}",
        f"{one['share']:.2f}",
        f"{one['base_bytes'] / _MIB:,.0f}",
        "yes" if one["is_within"] else "NO",
    )


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether reading kept to each budget and a tenth; encoded tables may take 20 MiB more."""
    return all("skipped" not in one and one["is_within"] for one in report["results"])

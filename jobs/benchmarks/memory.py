"""The memory of reading in a rank, compared with the loader's budget.

The peak of a fresh process while it reads one epoch, less what it had with all imports before the
loader was made. A budget of None is the default, whose order and figures are those of 512 MiB.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import aligned, in_turns, positive, result_rows
from benchmarks.images import jpegs
from benchmarks.processes import answer_of

HELP = "the memory of a rank, beside its budget"
_MIB = 1 << 20
_DEFAULT_BYTES = 512 * _MIB
_MOST = 1.1
_GROUP_BYTES = 32 * _MIB
_SPARKS_PAGE_ROWS, _PYARROWS_PAGE_ROWS = 100, 1024
"""After so many rows writers look at the size of a page."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--tables", nargs="+", default=list(_TABLES), choices=list(_TABLES))
    parser.add_argument(
        "--budgets", nargs="+", type=int, default=[0, 512, 128, 64], help="MiB; 0: the default"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows of each table")
    parser.add_argument("--rounds", type=positive, default=1)
    parser.add_argument("--data", default=None, help="directory for the files; kept if given")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Reads each table with each budget."""
    results = []
    for name in arguments.tables:
        make, rows, row_bytes, reading = _TABLES[name]
        count = max(1, int(rows * arguments.scale))
        with tempfile.TemporaryDirectory() as temporary:
            kept = Path(arguments.data).resolve() if arguments.data else Path(temporary)
            folder = kept / f"memory-{name}-{count}"
            group_rows = count if name == "one_group" else _GROUP_BYTES // row_bytes
            page_rows = _PYARROWS_PAGE_ROWS if name.endswith("by_pyarrow") else _SPARKS_PAGE_ROWS
            _write(make, folder, count, group_rows, page_rows)
            reads = {
                budget: partial(_read, folder, budget * _MIB or None, reading)
                for budget in arguments.budgets
            }
            print(f"{name}, {count:,} rows:", flush=True)
            found = in_turns(
                {str(key): read for key, read in reads.items()}, arguments.rounds, warm_up=False
            )
        results += [_result(name, count, one, found[str(one)]) for one in arguments.budgets]
    return {"results": results}


def _result(
    name: str, rows: int, budget: int, found: list[dict[str, float]] | str
) -> dict[str, Any]:
    entry: dict[str, Any] = {"table": name, "rows": rows, "budget_mib": budget}
    if isinstance(found, str):
        return {**entry, "skipped": found}
    peak = max(one["reading_bytes"] for one in found)
    return {
        **entry,
        "base_bytes": max(one["base_bytes"] for one in found),
        "reading_bytes": peak,
        "share": round(peak / (budget * _MIB or _DEFAULT_BYTES), 3),
        "seconds": statistics.median(one["seconds"] for one in found),
    }


def table(report: Mapping[str, Any]) -> str:
    """All tables and budgets."""
    rows: list[tuple[str, ...]] = [("", "budget MiB", "reading MiB", "of the budget", "base MiB")]
    return aligned(rows + result_rows(report["results"], "{table}: {rows:,} rows", _cells))


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(one["budget_mib"] or "default"),
        f"{one['reading_bytes'] / _MIB:,.0f}",
        f"{one['share']:.2f}",
        f"{one['base_bytes'] / _MIB:,.0f}",
    )


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether reading kept to each budget, and a tenth."""
    return all("skipped" not in one and one["share"] <= _MOST for one in report["results"])


def _read(folder: Path, budget: int | None, reading: Mapping[str, Any]) -> dict[str, float]:
    request = {"directory": str(folder), "budget": budget, "arguments": reading}
    return answer_of("memory_rank", request)


_Random = np.random.Generator


def _ints(columns: int, random: _Random, rows: int) -> dict[str, Any]:
    return {f"c{number}": random.integers(0, 1 << 40, rows) for number in range(columns)}


def _images(random: _Random, rows: int) -> dict[str, Any]:
    pictures = jpegs(500, 375, 64)
    return {"image": [pictures[at] for at in random.integers(0, len(pictures), rows).tolist()]}


def _lists(random: _Random, lengths: Any, values: Any) -> Any:
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))


def _arrays(random: _Random, rows: int) -> dict[str, Any]:
    values = random.random(rows * 64, dtype=np.float32)
    return {"x": _lists(random, np.full(rows, 64), values)}


def _tokens(random: _Random, rows: int) -> dict[str, Any]:
    """As many documents of each order of magnitude, from 1 to 100,000 tokens."""
    lengths = np.exp(random.uniform(0, np.log(100_000), rows)).astype(np.int64).clip(1, 100_000)
    tokens = random.integers(0, 50_000, lengths.sum(), dtype=np.int32)
    return {"tokens": _lists(random, lengths, tokens)}


_Table = tuple[Callable[[_Random, int], dict[str, Any]], int, int, dict[str, Any]]

_TABLES: dict[str, _Table] = {
    "two_ints": (partial(_ints, 2), 40_000_000, 16, {"batch_size": 1024}),
    "one_int": (partial(_ints, 1), 100_000_000, 8, {"batch_size": 1024}),
    "jpegs": (_images, 20_000, 30_000, {"batch_size": 32, "images": {"image": (64, 64)}}),
    "jpegs_by_pyarrow": (
        _images,
        20_000,
        30_000,
        {"batch_size": 32, "images": {"image": (64, 64)}},
    ),
    "one_group": (_arrays, 4_000_000, 256, {"batch_size": 1024}),
    "ragged_text": (_tokens, 20_000, 35_000, {"batch_size": 16, "ragged": ["tokens"]}),
    "packed_text": (_tokens, 20_000, 35_000, {"batch_size": 16, "pack": {"tokens": 4096}}),
}
"""For each table its columns' function, its rows, bytes of a row, and loader arguments."""


def _write(
    make: Callable[[_Random, int], dict[str, Any]],
    folder: Path,
    rows: int,
    group_rows: int,
    page_rows: int,
) -> None:
    """Writes one file, a row group at a time, and its manifest, unless they are there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sparkdl_runner.data.dataset.describe import describe_parquet
    from sparkdl_runner.data.dataset.manifest import MANIFEST_NAME

    if (folder / MANIFEST_NAME).exists():
        return
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    path = folder / "part-00000.parquet"
    writer = None
    for begin in range(0, rows, group_rows):
        made = pa.table(make(random, min(group_rows, rows - begin)))
        if writer is None:
            writer = pq.ParquetWriter(
                path,
                made.schema,
                compression="none",
                use_dictionary=False,
                write_batch_size=page_rows,
            )
        writer.write_table(made, row_group_size=group_rows)
    if writer is not None:
        writer.close()
    local = pa.fs.LocalFileSystem()
    manifest = describe_parquet(local, str(folder), [path.name])
    replace(manifest, page_rows=page_rows).write(local, str(folder))

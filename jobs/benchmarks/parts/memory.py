"""The memory of reading in a rank, compared with the loader's budget.

The peak of a new process while it reads one epoch, less what it had with all imports before the
data set was opened. The default budget is that of 512 MiB. Tables are read from the local disk, and
with ``--storage s3`` from a server in this process.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ranks.stages import in_stages
from benchmarks.servers.object_store import object_store
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from benchmarks.tables.memory_tables import TABLES, MemoryTable

HELP = "the memory of a rank, beside its budget"
_MIB = 1 << 20
_DEFAULT_MIB = 512
_MOST = 1.1
_NAMES = {"reading": "MiB", "of the budget": "", "epoch": "s"}
FIGURES = {
    **{name: Figure(unit=unit, better="less") for name, unit in _NAMES.items()},
    "of what it may take": Figure(unit="", better="less", bound=1),
}

OPTIONS = (
    Option("tables", list(TABLES), quick=["two_ints", "passages"], choices=list(TABLES)),
    Option("budgets", [0, 64], quick=[64], type=int, help="MiB; 0: the default"),
    Option("storage", ["local"], choices=["local", "s3"]),
    Option("scale", 1.0, quick=0.05, help="of the rows of each table"),
    Option("turns", 1),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each table from each storage, with each budget."""
    for name in arguments.tables:
        table, rows = TABLES[name], max(1, int(TABLES[name].rows * arguments.scale))
        for storage in arguments.storage:
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / name
                table.write(folder, rows)
                place: dict[str, Any] = {"url": str(folder)}
                if storage == "s3":
                    store = stack.enter_context(object_store(remembers=False))
                    place = {"url": store.upload(folder), "storage_options": store.options()}
                yield Case(
                    name=f"{name}, {storage}: {rows:,} rows",
                    figures=FIGURES,
                    ours={
                        f"{budget} MiB" if budget else "default": partial(
                            _read, table, place, budget * _MIB or None
                        )
                        for budget in arguments.budgets
                    },
                    turns=arguments.turns,
                    facts={"ranks": 1, "may take": f"{_MOST} of the budget, encoded 20 MiB more"},
                )


def _read(table: MemoryTable, place: Mapping[str, Any], budget: int | None) -> dict[str, float]:
    reading = {**table.reading, "memory_budget_bytes": budget, "cache_type": "null"}
    request = {"work": "ours", "epochs": 1, "arguments": reading, **place}
    *_, (epoch,) = in_stages([request])
    asked = budget or _DEFAULT_MIB * _MIB
    return {
        "reading": epoch["bytes"] / _MIB,
        "of the budget": epoch["bytes"] / asked,
        "of what it may take": epoch["bytes"] / (_MOST * asked + table.spare_bytes),
        "epoch": epoch["seconds"],
    }

"""The memory of reading in a rank, compared with the loader's budget.

The peak of a new process while it reads one epoch, less what it had with all imports before the
data set was opened. The default budget is that of 512 MiB. Tables are read from the local disk, and
with ``--storage s3`` from a server in this process.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.ranks.stages import in_stages
from benchmarks.servers.object_store import object_store
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from benchmarks.tables.memory_tables import TABLES, MemoryTable

HELP = "the memory of a rank, beside its budget"
_MIB, _DEFAULT_MIB, _MOST = 1 << 20, 512, 1.1
FACTS = {"ranks": 1, "may take": f"{_MOST} of the budget, encoded 20 MiB more"}
FIGURES = {
    "reading": Figure(unit="MiB", better="less"),
    "of the budget": Figure(unit="", better="less"),
    "epoch": Figure(unit="s", better="less"),
    "of what it may take": Figure(unit="", better="less", bound=1),
}

OPTIONS = (
    Option("tables", list(TABLES), quick=["two_ints", "passages"], choices=list(TABLES)),
    Option("budgets", (), type=int, help="MiB; 0: the loader's default (default: each table's)"),
    Option("storage", ["local"], choices=["local", "s3"]),
    Option("scale", 0.25, quick=0.05, help="of the rows of each table"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each table from each storage, with each budget."""
    for name, storage in product(arguments.tables, arguments.storage):
        table, rows = TABLES[name], max(1, int(TABLES[name].rows * arguments.scale))
        with (
            tempfile.TemporaryDirectory() as temporary,
            object_store(remembers=False) if storage == "s3" else nullcontext() as store,
        ):
            folder = Path(temporary, name)
            table.write(folder, rows)
            place: dict[str, Any] = {"url": str(folder)}
            if store:
                place = {"url": store.upload(folder), "storage_options": store.options()}
            budgets = arguments.budgets or [table.budget_mib]
            names = {one: f"{one} MiB" if one else "default" for one in budgets}
            yield Case(
                name=f"{name}, {storage}: {rows:,} rows",
                figures=FIGURES,
                ours={side: partial(_read, table, place, one) for one, side in names.items()},
                facts={**FACTS, "batch": table.reading["batch_size"]},
            )


def _read(table: MemoryTable, place: Mapping[str, Any], budget_mib: int) -> dict[str, float]:
    asked = (budget_mib or _DEFAULT_MIB) * _MIB
    budget = {"memory_budget_bytes": asked if budget_mib else None}
    arguments = {**table.reading, **budget, "cache_type": "null"}
    *_, (epoch,) = in_stages([{"work": "ours", "epochs": 1, "arguments": arguments, **place}])
    return {
        "reading": epoch["bytes"] / _MIB,
        "of the budget": epoch["bytes"] / asked,
        "of what it may take": epoch["bytes"] / (_MOST * asked + table.spare_bytes),
        "epoch": epoch["seconds"],
    }

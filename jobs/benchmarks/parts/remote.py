"""Loading from an S3 server that is far away, beside loading the same files from the local disk.

The server adds a delay to every request. Ranks are processes of their own, which begin each epoch
together.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks.ranks.stages import in_stages
from benchmarks.servers.object_store import ObjectStore, object_store
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import TABLES, write_table

HELP = "batches from remote storage, beside those from the local disk"
FILES, BATCH_SIZE, WORKERS, DELAY_SECONDS = 4, 1024, 2, 0.02
LOCAL, REMOTE, CACHED = "local", "remote", "remote, cached"
_SPEEDS = ("first epoch", "second epoch", "of a core")
_REQUESTS = ("GETs of a row group", "GETs to open", "LISTs")
FIGURES = {
    **{name: Figure(unit="rows/s", better="more") for name in _SPEEDS},
    "every row": Figure(unit="", better="more", bound=1),
    **{name: Figure(unit="", better="less") for name in _REQUESTS},
}

OPTIONS = (
    Option("tables", ["array"], choices=list(TABLES)),
    Option("rows", 500_000, quick=100_000),
    Option("ranks", 2),
    Option("turns", 3, quick=1),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each table in each way."""
    for table in arguments.tables:
        with (
            tempfile.TemporaryDirectory(prefix="benchmark-remote-") as temporary,
            object_store(DELAY_SECONDS) as store,
        ):
            folder = Path(temporary) / table
            write_table(table, folder, rows=arguments.rows, files=FILES)
            store.upload(folder)
            read = partial(_read, arguments.ranks, store, folder)
            yield Case(
                name=table,
                figures=FIGURES,
                ours={way: partial(read, way) for way in (REMOTE, CACHED)},
                peers={LOCAL: partial(read, LOCAL)},
                turns=arguments.turns,
                # moto itself is asked in the warm-up alone. A single turn is but a try.
                warm_ups=int(arguments.turns > 1),
                facts={
                    "ranks": arguments.ranks,
                    "batch of a rank": BATCH_SIZE,
                    "global batch": BATCH_SIZE * arguments.ranks,
                    "scaling": "strong",
                    "time": "an epoch, without opening",
                },
            )


def _read(ranks: int, store: ObjectStore, folder: Path, way: str) -> dict[str, float]:
    """Two epochs of all ranks in new processes."""
    request = {"work": "ours", "epochs": 2, "url": str(folder)}
    if way != LOCAL:
        request |= {"url": store.url_of(folder), "storage_options": store.options()}
    reading = {"batch_size": BATCH_SIZE, "workers_count": WORKERS}
    with tempfile.TemporaryDirectory() as cache:
        caching = {"cache_type": "local-disk" if way == CACHED else "null", "cache_location": cache}
        shards = [
            {**reading, **caching, "cur_shard": rank, "shard_count": ranks} for rank in range(ranks)
        ]
        stages = in_stages([{**request, "arguments": one} for one in shards])
        answers, requests = zip(*((stage, store.counts.copy()) for stage in stages), strict=True)
    opening, first, second = (after - before for before, after in pairwise(requests))
    _, _, *epochs = answers
    manifest = json.loads((folder / "_manifest.json").read_text())
    rows = [sum(one["samples"] for one in epoch) for epoch in epochs]
    seconds = [max(one["seconds"] for one in epoch) for epoch in epochs]
    used = sum(one["cpu_seconds"] for epoch in epochs for one in epoch)
    speeds = (rows[0] / seconds[0], rows[1] / seconds[1], sum(rows) / used)
    found = {
        **dict(zip(_SPEEDS, speeds, strict=True)),
        "every row": float(rows == 2 * [manifest["rows"]]),
    }
    if way == LOCAL:
        return found
    groups, lists = manifest["row_groups"]["count"], (first + second)["LIST"]
    counts = (first["GET"] / groups, opening["GET"], lists)
    return {**found, **dict(zip(_REQUESTS, counts, strict=True))}

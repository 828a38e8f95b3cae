"""Loading from an S3 server that is far away, beside loading the same files from the local disk.

The server adds a delay to every request, and may answer some with an error. Ranks are processes of
their own, which begin each epoch together.
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
from benchmarks.servers.object_store import ObjectStore, every, object_store
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option, positive
from benchmarks.tables.loader_tables import TABLES, write_table

HELP = "batches from remote storage, beside those from the local disk"
LOCAL, REMOTE, CACHED = "local", "remote", "remote, cached"
_SPEEDS = ("first epoch", "second epoch", "of a core")
_REQUESTS = ("GETs of a row group", "GETs to open", "LISTs")
FIGURES = {
    **{name: Figure(unit="rows/s", better="more") for name in _SPEEDS},
    "every row": Figure(unit="", better="more", bound=1),
    **{name: Figure(unit="", better="less") for name in _REQUESTS},
}

OPTIONS = (
    Option("tables", ["array", "scalar"], quick=["array"], choices=list(TABLES)),
    Option("rows", 1_000_000, quick=100000),
    Option("files", 4, help="files of each table"),
    Option("batch-size", 1024),
    Option("ranks", 2),
    Option("turns", 3, quick=1),
    Option("workers-count", 2),
    Option("delay-seconds", 0.02, help="of each request"),
    Option("fail-one-in", None, type=positive, help="answered by SlowDown"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each table in each way."""
    ranks, batch = arguments.ranks, arguments.batch_size
    facts = {"ranks": ranks, "batch of a rank": batch, "global batch": batch * ranks}
    for table in arguments.tables:
        with (
            tempfile.TemporaryDirectory(prefix="benchmark-remote-") as temporary,
            object_store(arguments.delay_seconds) as store,
        ):
            folder = Path(temporary) / table
            write_table(table, folder, rows=arguments.rows, files=arguments.files)
            store.upload(folder)
            store.refuses = every(arguments.fail_one_in)
            read = partial(_read, arguments, store, folder)
            yield Case(
                name=table,
                figures=FIGURES,
                ours={way: partial(read, way) for way in (REMOTE, CACHED)},
                peers={LOCAL: partial(read, LOCAL)},
                turns=arguments.turns,
                # The server behind the front is asked in the warm-up alone.
                warm_ups=1,
                facts={**facts, "scaling": "strong", "time": "an epoch, without opening"},
            )


def _read(
    arguments: argparse.Namespace, store: ObjectStore, folder: Path, way: str
) -> dict[str, float]:
    """Two epochs of all ranks in new processes."""
    request = {"work": "ours", "epochs": 2, "url": str(folder)}
    if way != LOCAL:
        request |= {"url": store.url_of(folder), "storage_options": store.options()}
    reading = {"batch_size": arguments.batch_size, "workers_count": arguments.workers_count}
    reading |= {"cache_type": "local-disk" if way == CACHED else "null"}
    with tempfile.TemporaryDirectory() as cache:
        reading |= {"cache_location": cache, "shard_count": arguments.ranks}
        ranks = [{**reading, "cur_shard": rank} for rank in range(arguments.ranks)]
        requests, answers = [], []
        for stage in in_stages([{**request, "arguments": one} for one in ranks]):
            answers.append(stage)
            requests.append(store.counts.copy())
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

"""Loading from an S3 server that is far away, beside loading the same files from the local disk.

The server adds a delay to every request, and may answer some with an error. Ranks are processes of
their own, which begin each epoch together, after they have opened their loaders.
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
from benchmarks.suite.options import positive
from benchmarks.tables.loader_tables import TABLES, write_table

HELP = "batches from remote storage, beside those from the local disk"
QUICK = ["--tables", "array", "--rows", "100000", "--turns", "1"]
LOCAL, REMOTE, CACHED = "local", "remote", "remote, cached"
FIGURES = {
    "first epoch": Figure(unit="rows/s", better="more"),
    "second epoch": Figure(unit="rows/s", better="more"),
    "of a core": Figure(unit="rows/s", better="more"),
    "every row": Figure(unit="", better="more", bound=1),
    "GETs of a row group": Figure(unit="", better="less"),
    "GETs to open": Figure(unit="", better="less"),
    "LISTs": Figure(unit="", better="less"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--tables", nargs="+", default=["array", "scalar"], choices=list(TABLES))
    parser.add_argument("--rows", type=positive, default=1_000_000)
    parser.add_argument("--files", type=positive, default=4, help="files of each table")
    parser.add_argument("--batch-size", type=positive, default=1024)
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--turns", type=positive, default=3)
    parser.add_argument("--workers-count", type=positive, default=2)
    parser.add_argument("--delay-seconds", type=float, default=0.02, help="of each request")
    parser.add_argument("--fail-one-in", type=positive, default=None, help="answered by SlowDown")


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each table in each way."""
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
                facts={
                    "ranks": arguments.ranks,
                    "scaling": "strong",
                    "batch of a rank": arguments.batch_size,
                    "global batch": arguments.batch_size * arguments.ranks,
                    "time": "an epoch of all ranks; opening is not in it",
                },
            )


def _read(
    arguments: argparse.Namespace, store: ObjectStore, folder: Path, way: str
) -> dict[str, float]:
    """Two epochs of all ranks in new processes."""
    manifest = json.loads((folder / "_manifest.json").read_text())
    is_local = way == LOCAL
    url = f"file://{folder}" if is_local else store.url_of(folder)
    options = None if is_local else store.options()
    with tempfile.TemporaryDirectory() as cache:
        shared = {"batch_size": arguments.batch_size, "workers_count": arguments.workers_count}
        shared |= {"cache_type": "local-disk" if way == CACHED else "null", "cache_location": cache}
        shared["shard_count"] = arguments.ranks
        request = {"work": "ours", "epochs": 2, "url": url, "storage_options": options}
        stages = in_stages(
            "ranks.sample_readers",
            [
                {**request, "arguments": {**shared, "cur_shard": rank}}
                for rank in range(arguments.ranks)
            ],
        )
        # After the imports no request has been made.
        next(stages)
        counts = [store.counts.copy()]
        answers = []
        for stage in stages:
            answers.append(stage)
            counts.append(store.counts.copy())
    opening, first, second = (after - before for before, after in pairwise(counts))
    epochs = answers[1:]
    rows = [sum(one["samples"] for one in epoch) for epoch in epochs]
    speeds = [
        count / max(one["seconds"] for one in epoch)
        for count, epoch in zip(rows, epochs, strict=True)
    ]
    used = sum(one["cpu_seconds"] for epoch in epochs for one in epoch)
    found = {"first epoch": speeds[0], "second epoch": speeds[1], "of a core": sum(rows) / used}
    found["every row"] = float(rows == [manifest["rows"]] * 2)
    if is_local:
        return found
    return {
        **found,
        "GETs of a row group": first["GET"] / manifest["row_groups"]["count"],
        "GETs to open": opening["GET"],
        "LISTs": opening["LIST"] + first["LIST"] + second["LIST"],
    }

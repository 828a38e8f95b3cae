"""Loading from an S3 server that is far away, beside loading the same files from the local disk.

The server adds a delay to every request, and may answer some with an error. With ``--url`` tables
are put into that folder instead, on HDFS say, and removed again. Ranks are processes of their own,
which begin each epoch together; the ways to read take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import aligned, in_turns, positive, ratio
from benchmarks.tables.loader_tables import TABLES, write_table
from benchmarks.servers.object_store import ObjectStore, every, object_store
from benchmarks.ranks.processes import last_line, module_command, module_environment
from benchmarks.host.spare_memory import SpareMemory
from sparkdl_runner.base.filesystem import join_url, open_filesystem

HELP = "batches from remote storage, beside those from the local disk"
WAYS = ("local", "remote", "remote, cached")
_BUCKET = "tables"
_SPARE_SHARE = 4
"""Ranks use less than so many times a table: its bytes, the disk's cache of them, and batches."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--tables", nargs="+", default=["array", "scalar"], choices=list(TABLES))
    parser.add_argument("--rows", type=positive, default=1_000_000)
    parser.add_argument("--files", type=positive, default=4, help="files of each table")
    parser.add_argument("--batch-size", type=positive, default=1024)
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--epochs", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--workers-count", type=positive, default=2)
    parser.add_argument("--delay-seconds", type=float, default=0.02, help="of each request")
    parser.add_argument("--fail-one-in", type=positive, default=None, help="answered by SlowDown")
    parser.add_argument("--url", default=None, help="a folder to read from, in place of the server")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Reads each table in each way."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary, _storage(arguments) as store:
        for table in arguments.tables:
            folder = Path(temporary) / table
            write_table(table, folder, rows=arguments.rows, files=arguments.files)
            if isinstance(store, ObjectStore):
                upload(store, folder)
                store.delay_seconds = arguments.delay_seconds
                store.refuses = every(arguments.fail_one_in)
            else:
                store.put(folder)
            print(f"{table}:", flush=True)
            size_bytes = sum(path.stat().st_size for path in folder.iterdir())
            spare = SpareMemory(_SPARE_SHARE * size_bytes)
            reads = {way: partial(_read, arguments, store, spare, way, folder) for way in WAYS}
            # The server behind the front is asked in the warm-up alone, which also brings the
            # files into the memory of whatever machine has them.
            results += _results(table, in_turns(reads, arguments.rounds, warm_up=True))
            spare.free()
            shutil.rmtree(folder)
    return {"results": results}


@dataclass(kw_only=True)
class _Folder:
    """A folder of any storage. Nobody counts the requests for it."""

    url: str
    counts: Counter[str] = field(default_factory=Counter)

    def put(self, folder: Path) -> None:
        """Puts a local folder into it."""
        from pyarrow import fs

        there, path = open_filesystem(join_url(self.url, folder.name))
        there.create_dir(path, recursive=True)
        fs.copy_files(str(folder), path, fs.LocalFileSystem(), there)

    def remove(self) -> None:
        """Removes it with all that is in it."""
        there, path = open_filesystem(self.url)
        there.delete_dir(path)


@contextmanager
def _storage(arguments: argparse.Namespace) -> Iterator[ObjectStore | _Folder]:
    if arguments.url is None:
        with object_store() as store:
            yield store
        return
    folder = _Folder(url=join_url(arguments.url, f"benchmark-{os.getpid()}"))
    try:
        yield folder
    finally:
        folder.remove()


def _results(table: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    results = []
    for way, rounds in found.items():
        if isinstance(rounds, str):
            results.append({"table": table, "way": way, "skipped": rounds})
            continue
        for number, one in enumerate(rounds[0]):
            entry = {**one, "table": table, "way": way, "epoch": number + 1}
            local = found["local"]
            if way != "local" and not isinstance(local, str):
                for key, name in (("rows_per_second", "times"), ("rows_per_cpu_second", "cpu")):
                    ours = [epochs[number][key] for epochs in rounds]
                    theirs = [epochs[number][key] for epochs in local]
                    entry[f"{name}_local"] = round(ratio(ours, theirs), 2)
            entry["has_all_rows"] = all(epochs[number]["has_all_rows"] for epochs in rounds)
            results.append(entry)
    return results


def table(report: Mapping[str, Any]) -> str:
    """All tables and ways, epoch by epoch."""
    rows: list[tuple[str, ...]] = [
        ("", "epoch", "rows/s", "of local", "by CPU", "GETs a row group", "to open", "LISTs")
    ]
    for one in report["results"]:
        name = f"{one['table']}: {one['way']}"
        if "skipped" in one:
            rows.append((name, f"unavailable: {one['skipped']}"))
            continue
        shares = [str(one.get(key, "-")) for key in ("times_local", "cpu_local")]
        requests = one["requests"]
        rows.append(
            (
                name,
                str(one["epoch"]),
                f"{one['rows_per_second']:,.0f}",
                *shares,
                f"{requests.get('GET', 0) / one['row_groups']:.2f}",
                str(one["opening_requests"].get("GET", 0)),
                str(requests.get("LIST", 0)),
            )
        )
    return aligned(rows)


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether each way gave its figures, and every row once."""
    return all(one.get("has_all_rows") for one in report["results"])


def upload(store: ObjectStore, folder: Path) -> None:
    """Puts a folder into the bucket, past the front's delays and errors."""
    from pyarrow import fs

    there = fs.S3FileSystem(**store.options(store.behind), allow_bucket_creation=True)
    there.create_dir(_BUCKET)
    store.forget()
    for path in folder.iterdir():
        with there.open_output_stream(f"{_BUCKET}/{folder.name}/{path.name}") as stream:
            stream.write(path.read_bytes())


def _read(
    arguments: argparse.Namespace,
    store: ObjectStore | _Folder,
    spare: SpareMemory,
    way: str,
    folder: Path,
) -> list[dict[str, Any]]:
    """One measurement: all ranks begin each epoch together.

    Raises:
        RuntimeError: A rank cannot read.
    """
    manifest = json.loads((folder / "_manifest.json").read_text())
    spare.hold()
    with tempfile.TemporaryDirectory() as cache:
        request = {
            **_place(store, way, folder),
            "ranks": arguments.ranks,
            "batch_size": arguments.batch_size,
            "epochs": arguments.epochs,
            "workers_count": arguments.workers_count,
            "arguments": {"cache_type": "null"},
        }
        if way == "remote, cached":
            request["arguments"] = {"cache_type": "local-disk", "cache_location": cache}
        threads = max(1, len(os.sched_getaffinity(0)) // arguments.ranks)  # As launchers set it.
        processes = [
            subprocess.Popen(
                module_command("ranks.remote_rank", json.dumps({**request, "rank": rank})),
                env={**module_environment(), "OMP_NUM_THREADS": str(threads)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(arguments.ranks)
        ]
        try:
            return list(_epochs(arguments, store, spare, manifest, processes))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.communicate()


def _place(store: ObjectStore | _Folder, way: str, folder: Path) -> dict[str, Any]:
    if way == "local":
        return {"url": f"file://{folder}", "storage_options": None}
    if isinstance(store, _Folder):
        return {"url": join_url(store.url, folder.name), "storage_options": None}
    return {"url": f"s3://{_BUCKET}/{folder.name}", "storage_options": store.options()}


def _epochs(
    arguments: argparse.Namespace,
    store: ObjectStore | _Folder,
    spare: SpareMemory,
    manifest: Mapping[str, Any],
    processes: Sequence[subprocess.Popen[str]],
) -> Any:
    _answers(processes)
    _go_on(processes)
    before = store.counts.copy()
    _answers(processes)
    opening = dict(store.counts - before)
    for _ in range(arguments.epochs):
        before = store.counts.copy()
        spare.free()
        _go_on(processes)
        answers = [json.loads(line) for line in _answers(processes)]
        spare.hold()
        rows = sum(one["rows"] for one in answers)
        yield {
            "rows_per_second": rows / max(one["seconds"] for one in answers),
            "rows_per_cpu_second": rows / sum(one["cpu_seconds"] for one in answers),
            "open_seconds": max(one["open_seconds"] for one in answers),
            "describe_seconds": max(one["describe_seconds"] for one in answers),
            "requests": dict(store.counts - before),
            "opening_requests": opening,
            "row_groups": manifest["row_groups"]["count"],
            "has_all_rows": rows == manifest["rows"],
        }


def _answers(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """The next line of each rank, which then waits."""
    lines = [process.stdout.readline() for process in processes]  # type: ignore[union-attr]
    for process, line in zip(processes, lines, strict=True):
        if not line:
            raise RuntimeError(last_line(process.communicate()[1]))
    return lines


def _go_on(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.stdin.write("go\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]

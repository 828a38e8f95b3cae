"""Reading from an S3 server that is far away: how often it is asked, and what becomes of errors."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from benchmarks.servers.object_store import ObjectStore, every, object_store

from sparkdl_runner.base import retrying
from sparkdl_runner.data import DatasetError, make_spark_converter
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.remote import disk_cache

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

FILES, GROUPS, ROWS = 3, 4, 2_000  # row groups of a file, rows of a row group
EXPIRED = (400, "ExpiredToken", "The provided token has expired.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A data set whose columns are so wide that two of them are two ranges."""
    folder = tmp_path_factory.mktemp("tables") / "wide"
    folder.mkdir()
    random = np.random.default_rng(0)
    names = [f"part-{number}.parquet" for number in range(FILES)]
    for number, name in enumerate(names):
        count = GROUPS * ROWS
        values = random.random(count * 150)
        pq.write_table(
            pa.table(
                {
                    "id": np.arange(count) + number * count,
                    "x": pa.FixedSizeListArray.from_arrays(values, 150).cast(
                        pa.list_(pa.float64())
                    ),
                    "label": random.integers(0, 9, count),
                }
            ),
            folder / name,
            row_group_size=ROWS,
        )
    local = pa.fs.LocalFileSystem()
    manifest = describe_parquet(local, str(folder), names, keep_footers=True)
    manifest.write(local, str(folder))
    return folder


@pytest.fixture(scope="module")
def running(folder) -> Iterator[ObjectStore]:
    with object_store() as store:
        store.upload(folder)
        yield store


@pytest.fixture
def store(running) -> Iterator[ObjectStore]:
    """A server that answers at once; its counts begin at zero."""
    running.counts.clear()
    yield running
    running.refuses, running.delay_seconds = every(None), 0.0


def options_of(store: ObjectStore) -> dict[str, Any]:
    """How to reach the server, whose threads may be held on a busy machine: S3's client would ask
    again after 3 s."""
    return {**store.options(), "request_timeout": 120}


def open_loader(store: ObjectStore, folder: Path, **arguments):
    options = options_of(store)
    converter = make_spark_converter(f"s3://tables/{folder.name}", storage_options=options)
    store.counts.clear()
    if "global_batch_size" not in arguments:
        arguments["batch_size"] = 250
    return converter.make_torch_dataloader(
        num_epochs=1, storage_options=options, workers_count=2, **arguments
    )


def ids(loader, epoch: int = 0) -> list[int]:
    loader.set_epoch(epoch)
    return [row for batch in loader for row in batch["id"].tolist()]


def requests_of(store: ObjectStore) -> Counter[str]:
    found, store.counts = store.counts, Counter()
    return found


def test_rows_come_as_from_the_local_disk_in_few_requests(store, folder, tmp_path):
    arguments = {"lanes": 1, "memory_budget_bytes": 32 << 20, "window_row_groups": 2}
    local = make_spark_converter(f"file://{folder}")
    with local.make_torch_dataloader(250, num_epochs=1, **arguments) as loader:
        expected = [ids(loader, epoch) for epoch in range(2)]
    cache = {"cache_type": "local-disk", "cache_location": str(tmp_path)}
    with open_loader(store, folder, **arguments, **cache) as loader:
        assert requests_of(store)["LIST"] == 0
        assert ids(loader, 0) == expected[0]
        found = requests_of(store)
        assert found["GET"] <= FILES + FILES * GROUPS, "a footer a file, a range a row group"
        assert found["LIST"] == 0
        assert ids(loader, 1) == expected[1]
        assert not requests_of(store), "all is in the cache"
    with open_loader(store, folder, **arguments) as loader:
        assert ids(loader, 0) == expected[0]
        requests_of(store)
        assert ids(loader, 1) == expected[1]
        assert requests_of(store)["GET"] <= FILES * GROUPS
    with open_loader(store, folder, columns=["id", "label"], **arguments) as loader:
        assert ids(loader, 0) == expected[0]
        assert requests_of(store)["GET"] <= FILES + 2 * FILES * GROUPS + 1


def test_ranks_of_a_host_ask_once_for_what_they_share(store, folder, tmp_path, monkeypatch):
    """Four ranks that each have parts of most row groups, and begin together."""
    monkeypatch.setattr(disk_cache, "_WAIT_SECONDS", 3600.0)  # One that fetches may be held.
    ranks, cache = 4, {"cache_type": "local-disk", "cache_location": str(tmp_path)}
    there = pa.fs.S3FileSystem(**options_of(store))
    written = there.get_file_info(f"tables/{folder.name}/part-0.parquet").mtime_ns
    # An object that is younger than that may be written again and keep its time.
    time.sleep(max(0.0, written / 1e9 + 3.0 - time.time()))
    store.delay_seconds = 0.02
    with ExitStack() as stack, ThreadPoolExecutor(ranks) as pool:
        loaders = [
            stack.enter_context(
                open_loader(
                    store,
                    folder,
                    cur_shard=rank,
                    shard_count=ranks,
                    lanes=4 * ranks,
                    global_batch_size=16 * ranks,
                    tail="uneven",
                    **cache,
                )
            )
            for rank in range(ranks)
        ]
        requests_of(store)
        found = [row for part in pool.map(ids, loaders) for row in part]
    assert sorted(found) == list(range(FILES * GROUPS * ROWS))
    assert requests_of(store)["GET"] <= 1 + FILES * GROUPS, "all footers, a range a row group"


def test_nothing_is_lost_where_one_answer_in_twenty_is_an_error(store, folder):
    with open_loader(store, folder) as loader:
        store.refuses = every(20)
        for epoch in range(3):
            assert sorted(ids(loader, epoch)) == list(range(FILES * GROUPS * ROWS))
        assert requests_of(store)["refused"]


def test_an_outage_is_waited_for(store, folder, monkeypatch):
    # All of the errors may be of one request.
    monkeypatch.setattr(retrying, "PAUSES_SECONDS", (0.1,) * 12)
    with open_loader(store, folder) as loader:
        left = iter(range(12))
        store.refuses = lambda *_: next(left, None) and (500, "InternalError", "We are sorry.")
        assert sorted(ids(loader)) == list(range(FILES * GROUPS * ROWS))
        assert next(left, None) is None, "more errors than the storage's client bears by itself"


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (EXPIRED, "the credentials for it have expired, or are not valid"),
        ((403, "AccessDenied", "No."), "credentials or permissions do not allow it"),
        ((404, "NoSuchKey", "No."), "it is not there"),
        ((503, "SlowDown", "No."), "it was asked too often|it cannot be reached"),
    ],
)
def test_what_the_storage_refuses_in_mid_epoch_is_told_as_that(
    store, folder, monkeypatch, refusal, sentence
):
    monkeypatch.setattr(retrying, "PAUSES_SECONDS", (0.01,))
    with open_loader(store, folder, lanes=1, memory_budget_bytes=20 << 20) as loader:
        batches = iter(loader)
        next(batches)
        store.refuses = lambda number, kind, path: refusal if kind == "GET" else None
        with pytest.raises(DatasetError, match=sentence) as caught:
            list(batches)
        assert "Convert" not in str(caught.value) or "not there" in sentence
        assert "part-" in str(caught.value)
        assert "row group" in str(caught.value)


def test_loaders_that_share_a_small_cache_and_end_early_disturb_nobody(store, folder, tmp_path):
    """What is read ahead, moved to the disk or taken from the cache belongs to one loader alone."""
    cache = {"cache_type": "local-disk", "cache_location": str(tmp_path)}
    small = {"cache_size_limit": 8 << 20, "memory_budget_bytes": 16 << 20, **cache}
    small |= {"window_row_groups": 1}
    store.refuses = every(20)
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(open_loader(store, folder, seed=seed, **small)) for seed in range(3)
        )
        rows = iter(first)
        found = [row for _ in range(9) for row in next(rows)["id"].tolist()]
        for _ in range(3):
            next(iter(second))  # Each replaces the one before, which is still reading ahead.
        second.close()
        assert sorted(ids(third)) == list(range(FILES * GROUPS * ROWS))
        found += [row for batch in rows for row in batch["id"].tolist()]
        assert sorted(found) == list(range(FILES * GROUPS * ROWS))
    assert not [name for name in os.listdir("/proc/self/fd") if str(tmp_path) in _target(name)]


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""  # The one of the listing itself.


def test_a_full_disk_ends_the_caching_and_not_the_training(store, folder, tmp_path, caplog):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", tmp_path]).returncode:
        pytest.xfail("only root can mount a small file system")
    try:
        cache = {"cache_type": "local-disk", "cache_location": str(tmp_path)}
        with (
            caplog.at_level(logging.WARNING),
            open_loader(store, folder, cache_size_limit=1 << 30, **cache) as loader,
        ):
            for epoch in range(2):
                assert sorted(ids(loader, epoch)) == list(range(FILES * GROUPS * ROWS))
        told = [record for record in caplog.records if "disk of the cache" in record.message]
        assert len(told) == 1
        assert shutil.disk_usage(tmp_path).used > 2 << 20, "what fits is kept"
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_an_object_that_was_written_again_is_refused(store, folder):
    with open_loader(store, folder) as loader:
        there = pa.fs.S3FileSystem(**options_of(store))
        path = folder / "part-1.parquet"
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        with there.open_output_stream(f"tables/{folder.name}/part-1.parquet") as stream:
            stream.write(content)
        try:
            with pytest.raises(DatasetError, match=r"part-1\.parquet was (changed|written again)"):
                ids(loader)
        finally:
            store.upload(folder)

"""Checkpoints on a real S3-compatible server that refuses requests at times."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from benchmarks.servers.object_store import ObjectStore, object_store
from pyarrow import fs

from one_module import replace_in
from sparkdl_runner.base import retrying
from sparkdl_runner.checkpoint import Checkpoint, CheckpointManager
from sparkdl_runner.checkpoint.directory.storage import open_storage
from sparkdl_runner.checkpoint.directory.transient_errors import patiently

pytestmark = pytest.mark.integration

SLOW_DOWN = (503, "SlowDown", "Please reduce your request rate.")
WRITES = ("PUT", "POST", "DELETE")
TIMES = 3


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store(remembers=False) as store:
        made = fs.S3FileSystem(**options_of(store), allow_bucket_creation=True)
        made.create_dir("checkpoints")
        yield store


@pytest.fixture
def store(server) -> Iterator[ObjectStore]:
    yield server
    server.refuses = lambda *_: None


def options_of(store: ObjectStore) -> dict[str, Any]:
    return {**store.options(), "scheme": "http"}


def test_a_refused_request_alone_is_repeated(store, monkeypatch):
    """Not the whole file, nor the whole removal, of which each has several that may be refused."""
    asked: Counter[tuple[str, str]] = Counter()

    def refuses(_: int, kind: str, path: str) -> tuple[int, str, str] | None:
        asked[kind, path] += 1
        return SLOW_DOWN if kind in WRITES and asked[kind, path] <= TIMES else None

    monkeypatch.setattr(retrying, "pauses_of", lambda _: iter(()))
    model = torch.nn.Linear(10, 10)
    with CheckpointManager(
        "s3://checkpoints/refused", keep_last=1, storage_options=options_of(store)
    ) as checkpoints:
        checkpoints.save(1, model)
        store.refuses = refuses
        checkpoints.save(2, model)
        checkpoints.wait()
        assert [str(name) for name in checkpoints.list()] == ["step-2/attempt-0"]
        assert checkpoints.verify("step-2/attempt-0") == []
    found = fs.S3FileSystem(**options_of(store)).get_file_info(
        fs.FileSelector("checkpoints/refused", recursive=True)
    )
    left = {re.sub(".*refused/", "", info.path).partition("/")[0] for info in found}
    assert left == {"attempts", "step-2"}, "no file and no directory of what was removed"
    assert sum(count > TIMES for count in asked.values()) > 8


def test_a_file_that_was_given_up_is_left_alone(store):
    """Arrow's stream would send the request again when it is freed, and hold the GIL meanwhile."""

    attempted: list[str] = []

    def refuses(_: int, kind: str, __: str) -> tuple[int, str, str] | None:
        attempted.extend([kind] * (kind in WRITES))
        # The last request of a file, in either of the ways in which Arrow writes it: POST, PUT and
        # POST, or one PUT.
        is_last = len(attempted) > 2 or attempted == ["PUT"]
        return SLOW_DOWN if kind in WRITES and is_last else None

    strategy = fs.AwsDefaultS3RetryStrategy(max_attempts=0)
    storage = open_storage(
        "s3://checkpoints/given-up", {**options_of(store), "retry_strategy": strategy}
    )
    store.refuses = refuses
    with pytest.raises(OSError, match="SLOW_DOWN"):
        storage.write("step-1/attempt-0/model", b"content")
    asked = sum(store.counts[kind] for kind in WRITES)
    gc.collect()
    assert sum(store.counts[kind] for kind in WRITES) == asked
    store.refuses = lambda *_: None
    assert not storage.exists("step-1/attempt-0/model")
    storage.replace("step-1/attempt-0/model", b"content")
    assert storage.exists("step-1/attempt-0/model")


def test_how_often_a_save_and_a_load_ask(store):
    """Each request is paid for, and takes its time: none is made for what is known already."""
    url, options = "s3://checkpoints/asked", options_of(store)
    asked: list[str] = []
    with CheckpointManager(url, keep_last=1, storage_options=options) as checkpoints:
        for step in (1, 2, 3):
            store.refuses = lambda _, kind, path: asked.append(f"{kind} {path}")
            asked.clear()
            checkpoints.save(step, torch.nn.Linear(10, 10))
            checkpoints.wait()
    files, of_a_file, of_a_removal = 4, 3, 9
    assert len(asked) <= files * of_a_file + of_a_removal + 3, "\n".join(asked)
    asked.clear()
    assert Checkpoint.load(url, storage_options=options).step == 3
    assert len(asked) == 5, "\n".join(asked)


def test_tries_last_as_long_as_was_asked_by_the_clock(monkeypatch):
    """Each call may take long by itself, as the storage's client tries again in it."""
    storage = open_storage("memory://clock", retry_seconds=60)
    now = [0.0]
    replace_in(monkeypatch, retrying, "time", monotonic=lambda: now[0])
    monkeypatch.setattr(retrying, "pauses_of", lambda _: iter([0.0] * 1000))

    def times_out() -> None:
        now[0] += 20
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        patiently(storage, times_out)
    assert now[0] == 60

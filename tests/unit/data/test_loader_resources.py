"""What a loader takes and gives back: memory, threads, files, time."""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from parquet_sets import LOCAL, load, numbered, one, small_blocks, write_groups

from sparkdl_runner.base import open_file
from sparkdl_runner.data.batches import pipeline
from sparkdl_runner.data.batches.loader import ArrowLoader
from sparkdl_runner.data.dataset import verified_files
from sparkdl_runner.data.dataset.describe import describe_parquet
from sparkdl_runner.data.read.reader import RowGroupReader
from sparkdl_runner.data.remote import disk_cache


def test_pages_stay_within_the_budget(tmp_path: Path) -> None:
    manifest = one(tmp_path, numbered(40_000, width=64), 1_000)  # 10 MB
    budget = 8_000_000
    arguments = {"batch_size": 64, "memory_budget_bytes": budget, "blocks_bytes": 500_000}
    arguments |= {"window_row_groups": 1}
    with load(tmp_path, manifest, **arguments) as loader:
        most = 0
        for _ in loader:
            assert loader._pipeline._arena is not None
            _, sizes, arena = loader._pipeline._arena
            pages = arena.pages_in_use
            most = max(most, pages * sizes.page_rows * loader._pipeline.layout.row_bytes)
        assert loader._pipeline._arena[2].pages_in_use == 0
    assert 0 < most <= 1.3 * budget


@pytest.mark.parametrize("mebibytes", [32, 64])
def test_blocks_of_the_next_epoch_leave_enough_pages(tmp_path: Path, mebibytes: int) -> None:
    manifest = one(tmp_path, numbered(50_000, width=64), 1_000)
    arguments = {"batch_size": 64, "memory_budget_bytes": mebibytes << 20, "num_epochs": 2}
    with load(tmp_path, manifest, columns=["id", "vector"], **arguments) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 2 * (50_000 - 50_000 % 64)


def test_a_row_group_that_is_partly_read_keeps_little_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_at_a_time: list[int] = []
    real = RowGroupReader.stream

    def watched(self: RowGroupReader, *given: Any, rows: int, **named: Any) -> Any:
        rows_at_a_time.append(rows)
        return real(self, *given, rows=rows, **named)

    monkeypatch.setattr(RowGroupReader, "stream", watched)
    manifest = one(tmp_path, numbered(40_000, width=64), 20_000)
    budget = 8 << 20
    arguments: dict[str, Any] = {"batch_size": 64, "lanes": 1, "num_epochs": 1}
    arguments |= {"blocks_bytes": 500_000, "window_row_groups": 2}
    with load(tmp_path, manifest, memory_budget_bytes=budget, **arguments) as loader:
        row_bytes = loader._pipeline.layout.row_bytes
        assert sum(len(batch["id"]) for batch in loader) == 40_000
    assert 60 << 10 <= row_bytes * max(rows_at_a_time) <= 512 << 10


def test_a_row_group_that_is_partly_read_keeps_a_page_of_each_column(tmp_path: Path) -> None:
    rows = 2 << 20  # 16 MiB in pages of 1 MiB
    table = pa.table({"id": np.random.default_rng(1).integers(0, 1 << 40, rows)})
    manifest = one(tmp_path, table, rows)
    before = pa.total_allocated_bytes()
    with load(tmp_path, manifest, batch_size=64, columns=["id"]) as loader:
        reader, columns = loader._pipeline.reader, loader.layout.columns
        parts = reader.stream(0, columns, rows=1_000, until=rows)
        next(parts)
        assert pa.total_allocated_bytes() - before < 8 << 20
        parts.close()


def open_files(folder: Path) -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # A thread closed it meanwhile.
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(f"{folder}/")]


def test_files_and_threads_are_given_back(tmp_path: Path) -> None:
    manifest = write_groups(tmp_path, numbered(600), [[20]] * 30)
    before = set(os.listdir("/proc/self/fd"))
    with load(tmp_path, manifest, batch_size=8) as loader:
        for number, _ in enumerate(loader):
            assert len(open_files(tmp_path)) <= 8 + 4
            if number == 20:
                break
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_files_of_many_row_groups_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_groups(tmp_path, numbered(600), [[2] * 10] * 30)
    opened: list[int] = []

    def counted(descriptor: int) -> pa.NativeFile:
        opened.append(descriptor)
        return open_file.arrow_file(descriptor)

    monkeypatch.setattr(verified_files, "arrow_file", counted)
    arguments = {"batch_size": 8, "workers_count": 1}  # Two may open a file beside one another.
    with load(tmp_path, manifest, **arguments) as loader:
        for _ in loader:
            assert len(open_files(tmp_path)) <= 30 + 1
    assert len(opened) == 30


class _Gate:
    """Lets so many files be opened at once, and others when it is opened."""

    def __init__(self, at_once: int) -> None:
        self.opened = threading.Event()
        self._at_once, self._numbers = at_once, itertools.count(1)

    def arrow_file(self, descriptor: int) -> pa.NativeFile:
        if next(self._numbers) > self._at_once and not self.opened.wait(120):
            self.opened.set()
            raise AssertionError(f"more than {self._at_once} files are needed")
        return open_file.arrow_file(descriptor)


def test_the_first_batch_needs_few_of_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = numbered(100)
    names = [f"{number}.parquet" for number in range(200)]
    pq.write_table(table, tmp_path / names[0])
    content = (tmp_path / names[0]).read_bytes()
    for name in names[1:]:
        (tmp_path / name).write_bytes(content)
    manifest = describe_parquet(LOCAL, str(tmp_path), names)
    lanes = 8
    gate = _Gate(at_once=2 * lanes)
    monkeypatch.setattr(verified_files, "arrow_file", gate.arrow_file)
    arguments = {"batch_size": 16, "lanes": lanes, "window_row_groups": 1}
    with small_blocks(20_000), load(tmp_path, manifest, **arguments) as loader:
        assert len(next(iter(loader))["id"]) == 16
        gate.opened.set()


class _GatedPool(ThreadPoolExecutor):
    """Keeps what it is given to do, and does nothing while its gate is closed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gate = threading.Event()
        self.gate.set()
        self.jobs: list[Future[Any]] = []

    def submit(self, call: Any, /, *given: Any, **named: Any) -> Future[Any]:
        def gated() -> Any:
            self.gate.wait()
            return call(*given, **named)

        self.jobs.append(super().submit(gated))
        return self.jobs[-1]

    def left(self) -> int:
        """How many jobs are still to be done."""
        return sum(not job.done() for job in self.jobs)


def test_closing_in_the_middle_waits_for_no_more_than_is_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "ThreadPoolExecutor", _GatedPool)
    manifest = one(tmp_path, numbered(50_000, width=64), 1_000)
    arguments = {"memory_budget_bytes": 512 << 20, "workers_count": 2}
    with load(tmp_path, manifest, batch_size=64, num_epochs=None, **arguments) as loader:
        batches = iter(loader)
        next(batches)
        pool = loader._pipeline.pool
        assert isinstance(pool, _GatedPool)
        wait(pool.jobs)
        pool.gate.clear()
        while pool.left() < 10:  # The loader reads ahead, in the place of what was taken.
            next(batches)
        closing = threading.Thread(target=loader.close)
        closing.start()
        until = time.monotonic() + 120
        while pool.left() > 2 and time.monotonic() < until:
            time.sleep(0.001)
        waited_for = pool.left()
        pool.gate.set()
        closing.join()
    assert waited_for <= 2


@pytest.mark.one_lane
@pytest.mark.parametrize("is_closed", [False, True], ids=["leaving the loop", "closing"])
def test_the_end_does_not_wait_for_a_process_that_hangs_in_a_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    monkeypatch.setattr(disk_cache, "_WAIT_SECONDS", 3600.0)
    manifest = write_groups(tmp_path / "far", numbered(64), [[16]] * 4)
    with (
        small_blocks(1_000),
        ArrowLoader(
            manifest,
            pyarrow.fs.SubTreeFileSystem("/", LOCAL),
            str(tmp_path / "far"),
            batch_size=8,
            shuffle=False,
            prefetch_batches=1,
            cache_type="local-disk",
            cache_location=str(tmp_path),
        ) as loader,
    ):
        [folder] = [path.parent for path in tmp_path.glob("*/*/users")]
        with open(folder / "1-footer.part", "wb") as part:
            fcntl.flock(part, fcntl.LOCK_EX)  # As the process does that fetches this footer.
            batches = iter(loader)
            next(batches)
            while open_files(folder).count(str(folder / "1-footer.part")) < 2:
                time.sleep(0.001)
            end = loader.close if is_closed else batches.close
            ending = threading.Thread(target=end, daemon=True)
            ending.start()
            ending.join(300)
            has_ended = not ending.is_alive()
        ending.join()
        assert has_ended
        if not is_closed:
            ids = [number for batch in loader for number in batch["id"].tolist()]
            assert ids == list(range(64)), "the loader reads once it has been fetched"


@pytest.mark.parametrize("workers_count", [1, 3])
def test_the_pool_outlives_an_epoch_and_not_the_loader(tmp_path: Path, workers_count: int) -> None:
    manifest = one(tmp_path, numbered(100))
    loader = load(tmp_path, manifest, batch_size=8, workers_count=workers_count)
    list(loader)
    pool = loader._pipeline.pool
    list(loader)
    assert loader._pipeline.pool is pool
    loader.close()
    loader.close()
    assert loader._pipeline.pool is None


@pytest.mark.parametrize("groups", [[[100] * 40] * 12, [[300]] * 100], ids=["row groups", "files"])
def test_no_more_is_read_than_the_files_hold(tmp_path: Path, groups: list[list[int]]) -> None:
    rows = sum(map(sum, groups))
    manifest = write_groups(tmp_path, numbered(rows, 6), groups)
    size = sum(file.size_bytes for file in manifest.files)

    def read_so_far() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])  # rchar, by read() and the like

    # Two threads may read the footer of a file beside one another.
    with load(tmp_path, manifest, batch_size=50, workers_count=1) as loader:
        before = read_so_far()
        assert sum(len(batch["id"]) for batch in loader) == rows
        assert read_so_far() - before < 1.1 * size

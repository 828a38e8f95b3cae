"""Row groups that are read side by side take so much memory, and what is more goes to the disk."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from parquet_sets import LOCAL, numbered, write_groups

from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.remote import memory_pool, ranges
from sparkdl_runner.data.remote.byte_ranges import column_ranges
from sparkdl_runner.data.remote.disk_cache import DiskCache


def test_what_does_not_fit_beside_the_others_is_on_disk_until_they_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_groups(tmp_path, numbered(4000), [[1000] * 4])
    files = VerifiedFiles(Dataset(manifest, LOCAL, str(tmp_path)))
    held, on_disk = [], []

    def full(*asked: object) -> None:
        on_disk.append(asked)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ranges, "on_disk", full)
    group = column_ranges(pq_metadata(tmp_path), 0, ["id"])[0][1]
    # Three fourths of five sixths of it hold two row groups, and not three.
    remote = ranges.RemoteRowGroups(files, memory_bytes=4 * group, stopping=threading.Event())
    try:
        for number in range(3):
            held.append(remote.open(number, ["id"]))
            assert len(on_disk) == max(0, number - 1)
        assert held[2].read_row_group(2, ["id"])["id"].to_pylist() == list(range(2000, 3000))
        held.clear()
        gc.collect()
        while remote._pool._used_bytes:  # Arrow's own thread may be the last to let it go.
            time.sleep(0.001)
        held += [remote.open(number, ["id"]) for number in (3, 0)]
        assert len(on_disk) == 1
        remote.allow_more(3 * group)  # Three fourths of it hold two more.
        held += [remote.open(number, ["id"]) for number in (1, 2)]
        assert len(on_disk) == 1
    finally:
        remote.close()


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("has_cache", [False, True])
def test_a_row_group_that_is_too_large_goes_to_the_disk_slice_by_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool, has_cache: bool
) -> None:
    manifest = write_groups(tmp_path / "set", numbered(40_000), [[40_000]])
    asked: list[int] = []
    real = ranges.RemoteRowGroups._read

    def counted(self: ranges.RemoteRowGroups, *given: Any) -> None:
        asked.append(len(given[3]))
        real(self, *given)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ranges.RemoteRowGroups, "_read", counted)
    monkeypatch.setattr(memory_pool, "_LEAST_BYTES", 1)
    if is_full:
        monkeypatch.setattr(ranges, "on_disk", full)
    cache_bytes = 10_000 if is_full else 1 << 30
    remote = ranges.RemoteRowGroups(
        VerifiedFiles(Dataset(manifest, LOCAL, str(tmp_path / "set"))),
        cache=DiskCache(tmp_path / "cache", cache_bytes, "a") if has_cache else None,
        memory_bytes=24_000,
        stopping=threading.Event(),
    )
    try:
        group = remote.open(0, ["id"]).read_row_group(0, ["id"])
        assert group["id"].to_pylist() == list(range(40_000))
    finally:
        remote.close()
    ((_, size),) = column_ranges(pq_metadata(tmp_path / "set"), 0, ["id"])
    assert size > 20_000
    if not is_full:
        assert sum(asked) == size
        assert max(asked) <= 10_000
    else:
        # The disk is full, so the row group is fetched again, whole, into memory.
        assert asked[-1] == size
        assert sum(asked[:-1]) <= (2 * 10_000 if has_cache else 0)


@pytest.mark.parametrize("has_cache", [False, True])
def test_all_that_is_fetched_at_a_time_has_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_cache: bool
) -> None:
    manifest = write_groups(tmp_path / "set", numbered(160_000), [[20_000] * 4, [40_000] * 2])
    monkeypatch.setattr(memory_pool, "_LEAST_BYTES", 1000)
    used: list[float] = []
    real = memory_pool.MemoryPool._map

    def counted(self: memory_pool.MemoryPool, size: int, **passes: bool) -> memoryview:
        memory = real(self, size, **passes)
        used.append((self._used_bytes + self._kept_bytes) / self.limit_bytes)
        return memory

    monkeypatch.setattr(memory_pool.MemoryPool, "_map", counted)
    ((_, group),) = column_ranges(pq_metadata(tmp_path / "set"), 0, ["id"])
    for memory_bytes in (group, 3 * group, 8 * group):
        folder = tmp_path / str(memory_bytes)
        remote = ranges.RemoteRowGroups(
            VerifiedFiles(Dataset(manifest, LOCAL, str(tmp_path / "set"))),
            cache=DiskCache(folder, None, "a") if has_cache else None,
            memory_bytes=memory_bytes,
            stopping=threading.Event(),
        )
        try:
            remote.read_ahead(range(6), ["id"])
            groups = [remote.open(number, ["id"]) for number in range(6)]
            found = [
                row
                for number, index in enumerate([0, 1, 2, 3, 0, 1])
                for row in groups[number].read_row_group(index, ["id"])["id"].to_pylist()
            ]
            assert found == list(range(160_000))
        finally:
            remote.close()
    assert used
    assert max(used) <= 1


def test_who_waits_for_memory_ends_when_it_is_told_to() -> None:
    stopping = threading.Event()
    memory = memory_pool.MemoryPool(10 << 20, stopping)
    with memory.passing(5 << 20), memory.passing(5 << 20), ThreadPoolExecutor() as pool:

        def wait() -> None:
            with memory.passing(5 << 20):
                pass

        waiting = pool.submit(wait)
        stopping.set()
        with pytest.raises(CancelledError):
            waiting.result()
    gc.collect()
    assert memory._used_bytes == 0


def pq_metadata(folder: Path) -> ranges.pq.FileMetaData:
    return ranges.pq.read_metadata(folder / "part-00000.parquet")

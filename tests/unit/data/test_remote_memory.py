"""Row groups that are read side by side take so much memory, and what is more goes to the disk."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from parquet_sets import LOCAL, numbered, write_groups

from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.read import fetched_group, ranges
from sparkdl_runner.data.read.byte_ranges import column_ranges
from sparkdl_runner.data.read.disk_cache import DiskCache


def test_what_does_not_fit_beside_the_others_is_on_disk_until_they_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_groups(tmp_path, numbered(4000), [[1000] * 4])
    files = VerifiedFiles(Dataset(manifest, LOCAL, str(tmp_path)))
    held, on_disk = [], []

    def full(*asked: object) -> None:
        on_disk.append(asked)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetched_group, "on_disk", full)
    group = column_ranges(pq_metadata(tmp_path), 0, ["id"])[0][1]
    # A third of it holds two row groups, and not three.
    remote = ranges.RemoteRowGroups(
        files, memory_bytes=3 * 5 * group // 2, stopping=threading.Event()
    )
    try:
        for number in range(3):
            held.append(remote.open(number, ["id"]))
            assert len(on_disk) == max(0, number - 1)
        assert held[2].read_row_group(2, ["id"])["id"].to_pylist() == list(range(2000, 3000))
        held.clear()
        gc.collect()
        held += [remote.open(number, ["id"]) for number in (3, 0)]
        assert len(on_disk) == 1
        remote.allow(3 * group)  # Two thirds of it hold two more.
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
    real = ranges.RemoteRowGroups._range

    def counted(self: ranges.RemoteRowGroups, *given: Any) -> memoryview:
        asked.append(given[3])
        return real(self, *given)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ranges.RemoteRowGroups, "_range", counted)
    monkeypatch.setattr(ranges, "_SLICE_BYTES", 10_000)
    monkeypatch.setattr(ranges, "_LEAST_BYTES", 1)
    if is_full:
        monkeypatch.setattr(ranges, "on_disk", full)
    remote = ranges.RemoteRowGroups(
        VerifiedFiles(Dataset(manifest, LOCAL, str(tmp_path / "set"))),
        cache=DiskCache(tmp_path / "cache", 1 << 30, "a") if has_cache else None,
        memory_bytes=10_000,
        stopping=threading.Event(),
    )
    try:
        group = remote.open(0, ["id"]).read_row_group(0, ["id"])
        assert group["id"].to_pylist() == list(range(40_000))
    finally:
        remote.close()
    ((_, size),) = column_ranges(pq_metadata(tmp_path / "set"), 0, ["id"])
    assert size > 20_000
    assert sum(asked) == size
    assert max(asked) == size if is_full else max(asked) <= 10_000


def pq_metadata(folder: Path) -> ranges.pq.FileMetaData:
    return ranges.pq.read_metadata(folder / "part-00000.parquet")

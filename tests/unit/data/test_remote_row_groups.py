"""How often a storage that is far away is asked, by the loader of one rank."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pytest
from parquet_sets import LOCAL, load, numbered, write_groups

from sparkdl_runner.data import DatasetError
from sparkdl_runner.data.batches.loader import ArrowLoader
from sparkdl_runner.data.dataset.converted import Converted
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.describe import Written, describe_parquet, describe_written
from sparkdl_runner.data.dataset.files import pack
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.dataset.verified_files import VerifiedFiles
from sparkdl_runner.data.remote import stored_footers
from sparkdl_runner.data.remote.disk_cache import DiskCache
from sparkdl_runner.data.remote.ranges import RemoteRowGroups
from sparkdl_runner.rank import world
from sparkdl_runner.rank.world import Peer, assign_ranks

ROWS = 200_000  # of a row group


class _CountedFile:
    """What ``pyarrow.PythonFile`` needs of an open file."""

    closed = False

    def __init__(self, file: pa.NativeFile, counts: Counter[str], counting: threading.Lock) -> None:
        self._file, self._counts, self._counting = file, counts, counting
        self.seek, self.tell, self.size, self.close = file.seek, file.tell, file.size, file.close

    def read(self, size: int) -> bytes:
        content: bytes = self._file.read(size)
        with self._counting:
            self._counts["reads"] += 1
            self._counts["bytes"] += len(content)
        return content


class _FarHandler(fs.FSSpecHandler):
    """The local disk as a storage that the kernel does not know; counts what is read there."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._local, self._counting = fs.LocalFileSystem(), threading.Lock()

    def get_type_name(self):
        return "far"

    def get_file_info(self, paths):
        return self._local.get_file_info(paths)

    def open_input_file(self, path):
        with self._counting:
            self.counts["opens"] += 1
        file = self._local.open_input_file(path)
        return pa.PythonFile(_CountedFile(file, self.counts, self._counting), "r")


@pytest.fixture
def far() -> _FarHandler:
    return _FarHandler()


def rows(loader: ArrowLoader) -> Iterator[int]:
    for batch in loader:
        yield from batch["id"].tolist()


@pytest.mark.parametrize("groups", [1, 2])
def test_lanes_of_a_rank_that_share_a_row_group_fetch_it_once(tmp_path, far, groups):
    table = pa.table({"id": np.arange(groups * ROWS)})
    manifest = write_groups(tmp_path, table, [[ROWS] * groups])
    size = manifest.files[0].size_bytes
    # Blocks are so small that each lane reads its part of a row group a few rows at a time.
    arguments = {
        "batch_size": 1000,
        "lanes": 8,
        "num_epochs": 1,
        "memory_budget_bytes": 40 << 20,
        "cache_type": "null",
        "device": "numpy",
        # One lane reads on when the next one has begun: no thread can be ahead of another.
        "workers_count": 1,
    }
    with load(tmp_path, manifest, **arguments) as loader:
        expected = list(rows(loader))
    with ArrowLoader(manifest, fs.PyFileSystem(far), str(tmp_path), **arguments) as loader:
        assert list(rows(loader)) == expected
    assert far.counts["reads"] <= 1 + groups, "the footer, and each row group"
    assert far.counts["bytes"] <= 1.1 * size + (64 << 10)


def test_threads_that_open_a_row_group_at_once_fetch_it_once(tmp_path, far):
    manifest = write_groups(tmp_path, pa.table({"id": np.arange(ROWS)}), [[ROWS]])
    files = VerifiedFiles(Dataset(manifest, fs.PyFileSystem(far), str(tmp_path)))
    remote = RemoteRowGroups(files, memory_bytes=24 << 20, stopping=threading.Event())
    try:
        with ThreadPoolExecutor(8) as pool:
            opened = list(pool.map(lambda _: remote.open(0, ["id"]), range(8)))
        found = [one.read_row_group(0, ["id"])["id"].to_pylist() for one in opened]
    finally:
        remote.close()
    assert found == [list(range(ROWS))] * 8
    assert far.counts["reads"] == 1, "the file is one row group"


@pytest.mark.parametrize("shares", [True, False])
def test_ranks_that_share_a_host_fetch_a_row_group_once(tmp_path, far, monkeypatch, shares):
    ranks = 4
    manifest = write_groups(tmp_path / "set", pa.table({"id": np.arange(2 * ROWS)}), [[ROWS] * 2])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    peers = [
        Peer(partition=n, host="h", host_key=f"{0 if shares else n}", address="::1", interface="lo")
        for n in range(ranks)
    ]
    found: list[int] = []
    for place in assign_ranks(peers, backend="torch").values():
        monkeypatch.setattr(world, "_current", place)
        arguments = {"batch_size": 1000, "num_epochs": 1, "device": "numpy", "tail": "uneven"}
        there = fs.PyFileSystem(far)
        with ArrowLoader(manifest, there, str(tmp_path / "set"), **arguments) as loader:
            found += rows(loader)
    assert sorted(found) == list(range(2 * ROWS))
    # A rank that fetches a row group reads the file's footer, too.
    assert far.counts["reads"] == 2 * (2 if shares else ranks)


FILES, GROUPS = 5, 3


@pytest.fixture
def with_footers(tmp_path) -> Path:
    """A conversion as it is on remote storage: the footers of all its files are in one."""
    folder = tmp_path / "set"
    manifest = write_groups(folder, numbered(FILES * GROUPS * 4), [[4] * GROUPS] * FILES)
    names = [file.path for file in manifest.files]
    describe_parquet(LOCAL, str(folder), names, keep_footers=True).write(LOCAL, str(folder))
    return folder


def test_only_a_conversion_on_remote_storage_keeps_them(with_footers):
    written = Written(
        url="", rows=None, content_digest=None, null_counts={}, list_lengths={"vector": (3,)}
    )
    kept = with_footers / "_footers.bin"
    for storage in (fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("file"))), LOCAL):
        kept.unlink(missing_ok=True)
        manifest = describe_written(written, storage, str(with_footers), "", False).manifest
        if storage is LOCAL:
            assert manifest.footer_sizes is None
            assert not kept.exists()
        else:
            assert manifest.footer_sizes.sum() == kept.stat().st_size


def rows_from_far(far: _FarHandler, folder: Path) -> list[int]:
    """The rows of one epoch, by a loader that knows when each file was written."""
    dataset = Dataset(Manifest.read(LOCAL, str(folder)), fs.PyFileSystem(far), str(folder))
    with ArrowLoader(
        *dataset, converted=Converted.of(dataset), batch_size=4, cache_type="null", device="numpy"
    ) as loader:
        return list(rows(loader))


def test_the_footers_of_all_files_come_in_one_request(with_footers, far):
    with load(with_footers, Manifest.read(LOCAL, str(with_footers)), batch_size=4) as loader:
        expected = list(rows(loader))
    assert rows_from_far(far, with_footers) == expected
    assert far.counts["reads"] == 1 + FILES * GROUPS


def test_few_footers_are_there_before_the_first_row_group_is_asked_for(with_footers, far):
    dataset = Dataset(
        Manifest.read(LOCAL, str(with_footers)), fs.PyFileSystem(far), str(with_footers)
    )
    files = VerifiedFiles(dataset, Converted.of(dataset))
    remote = RemoteRowGroups(files, memory_bytes=1 << 20, stopping=threading.Event())
    remote.close()
    assert (far.counts["opens"], far.counts["reads"]) == (1, 1)
    assert "sparkdl-footers" not in [thread.name for thread in threading.enumerate()]


def test_many_footers_are_not_there_before_they_are_asked_for(with_footers, far, monkeypatch):
    """Each rank needs few of them."""
    whole = int(Manifest.read(LOCAL, str(with_footers)).footer_sizes.sum())
    monkeypatch.setattr(stored_footers, "_BLOCK_BYTES", whole - 1)
    dataset = Dataset(
        Manifest.read(LOCAL, str(with_footers)), fs.PyFileSystem(far), str(with_footers)
    )
    files = VerifiedFiles(dataset, Converted.of(dataset))
    RemoteRowGroups(files, memory_bytes=1 << 20, stopping=threading.Event()).close()
    assert far.counts["opens"] == 0


def test_a_file_is_opened_while_its_row_group_waits_for_memory(tmp_path, far):
    manifest = write_groups(tmp_path / "set", numbered(200), [[200]])
    files = VerifiedFiles(Dataset(manifest, fs.PyFileSystem(far), str(tmp_path / "set")))

    def remote() -> RemoteRowGroups:
        return RemoteRowGroups(
            files,
            cache=DiskCache(tmp_path / "cache", None, "a"),
            memory_bytes=12 << 20,
            stopping=threading.Event(),
        )

    first = remote()
    first.open(0, ["id"]).close()
    first.close()
    for entry in (tmp_path / "cache").rglob("0-4+*"):
        entry.unlink()  # The footer stays: the file is opened for the row group alone.
    second, opened, real = remote(), threading.Event(), files.open

    def watched(*given, **named):
        found = real(*given, **named)
        opened.set()
        return found

    files.open = watched
    half = second._pool.largest_bytes
    try:
        with second._pool.passing(half), second._pool.passing(half):
            second.read_ahead([0], ["id"])
            assert opened.wait(120)
        found = second.open(0, ["id"]).read_row_group(0, ["id"])
        assert found["id"].to_pylist() == list(range(200))
    finally:
        second.close()


def test_files_of_a_time_that_nobody_knows_are_compared_by_their_own_footers(with_footers, far):
    manifest = Manifest.read(LOCAL, str(with_footers))
    path = with_footers / manifest.files[0].path
    path.write_bytes(path.read_bytes().replace(b"parquet-cpp", b"parquet-xyz"))
    with (
        ArrowLoader(manifest, fs.PyFileSystem(far), str(with_footers), batch_size=4) as loader,
        pytest.raises(DatasetError, match="footer is not the one that the manifest knows"),
    ):
        list(rows(loader))


@pytest.mark.parametrize("damage", ["gone", "cut short", "another byte", "another conversion's"])
def test_footers_that_are_damaged_are_read_from_the_files(with_footers, far, caplog, damage):
    path = with_footers / "_footers.bin"
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut short":
        path.write_bytes(content[:100])
    elif damage == "another byte":
        content[300] ^= 1
        path.write_bytes(content)
    else:
        sizes = Manifest.read(LOCAL, str(with_footers)).footer_sizes
        path.write_bytes(content[sizes[0] :] + content[: sizes[0]])
    assert sorted(rows_from_far(far, with_footers)) == list(range(FILES * GROUPS * 4))
    assert caplog.text.count("footers are read from each file") == 1


def test_sizes_of_footers_that_cannot_be_are_refused_and_need_not_be_there(with_footers):
    path = with_footers / "_manifest.json"
    known = json.loads(path.read_text())
    for sizes in ([-1] * FILES, [1 << 40] * FILES, [100] * (FILES - 1)):
        wrong = known | {"footer_sizes": pack(np.array(sizes, dtype=np.int64))}
        path.write_text(json.dumps(wrong))
        with pytest.raises(DatasetError, match=r"footers of its files|an array of it"):
            Manifest.read(LOCAL, str(with_footers))
    del known["footer_sizes"]
    path.write_text(json.dumps(known))
    assert Manifest.read(LOCAL, str(with_footers)).footer_sizes is None

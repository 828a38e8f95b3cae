"""Entries of the cache on the local disk: where their values lie, and what damage does."""

from __future__ import annotations

import errno
import gc
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from sparkdl_runner.data.remote import disk_cache
from sparkdl_runner.data.remote.disk_cache import DiskCache

FAR = 1 << 30


@pytest.fixture(autouse=True)
def _waits_for_slow_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, one that fetches may be held for longer than others wait for it."""
    monkeypatch.setattr(disk_cache, "_WAIT_SECONDS", 3600.0)


def put(cache: DiskCache, key: str, value: bytes, start: int = 0) -> None:
    assert cache.get_or_fetch(key, lambda: memoryview(value), start) == value


def test_a_value_is_read_at_its_place_and_takes_no_room_before_it(tmp_path: Path) -> None:
    first, second = (DiskCache(tmp_path, 100_000, "a") for _ in range(2))
    value = os.urandom(50_000)
    put(first, "far", value, FAR)
    for cache in (first, second):
        stream = cache.open("far", FAR)
        assert stream is not None
        assert stream.read_at(len(value), FAR) == value
        assert cache.get("far", FAR) == value
        cache.close()
    first.close()
    later = DiskCache(tmp_path, 100_000, "b")
    put(later, "more", os.urandom(40_000))
    assert later.get("more") is not None, "what lies before a value does not count"
    later.close()


def test_a_large_value_has_its_place_on_the_disk_before_it_is_fetched(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 5 << 20, "a")
    size = 3 << 20
    content = os.urandom(size)
    there: list[int] = []

    def parts() -> Iterator[memoryview]:
        for begin in (0, 2 << 20):
            [path] = tmp_path.glob("*/a/*.part")
            there.append(512 * path.stat().st_blocks)
            yield memoryview(content)[begin : begin + (2 << 20)]

    stream = cache.open_or_fill("large", lambda: (size, parts()), 4096)
    assert stream is not None
    assert stream.read_at(size, 4096) == content
    assert min(there) >= size
    there.clear()
    assert cache.open_or_fill("next", lambda: (size, parts()), 4096) is None
    assert there == [], "what has no room is not fetched"
    assert not list(tmp_path.glob("*/a/*.part"))
    [used] = tmp_path.glob("*/used")
    assert size < int(used.read_text()) < size + (1 << 14)
    cache.close()


def test_a_disk_without_room_for_a_large_value_ends_the_caching(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    cache = DiskCache(tmp_path, None, "a")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    begun = cache.open_or_fill("large", lambda: (2 << 20, iter([memoryview(b"")])), 0)
    assert begun is None
    assert "is full: nothing more is kept there" in caplog.text
    [used] = tmp_path.glob("*/used")
    assert int(used.read_text()) == 0
    cache.close()


def test_who_wrote_an_entry_does_not_compare_it(tmp_path: Path, monkeypatch) -> None:
    cache = DiskCache(tmp_path, None, "a")
    put(cache, "key", b"a value", 4096)
    monkeypatch.setattr(disk_cache, "_is_whole", lambda *_: pytest.fail("it is read again"))
    assert cache.get("key", 4096) == b"a value"
    cache.close()


def test_damage_is_found_by_whoever_has_not_read_the_entry(tmp_path: Path, caplog) -> None:
    cache = DiskCache(tmp_path, None, "a")
    put(cache, "key", b"a value", 4096)
    [path] = tmp_path.glob("*/a/key")
    content = bytearray(path.read_bytes())
    content[4097] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert cache.open("key", 4096) is None, "the file was changed after it was written"
    assert "was damaged and is fetched again" in caplog.text
    assert not path.exists()
    put(cache, "key", b"a value", 4096)
    assert cache.get("key", 4096) == b"a value"
    path.write_bytes(b"")
    assert cache.get("key", 4096) is None
    cache.close()


def test_what_many_want_at_once_is_fetched_by_one(tmp_path: Path) -> None:
    caches = [DiskCache(tmp_path, None, "a") for _ in range(4)]
    fetched: list[str] = []

    def fetch(key: str) -> memoryview:
        fetched.append(key)
        return memoryview(key.encode() * 1000)

    def ask(number: int) -> bytes:
        cache, key = caches[number % len(caches)], f"key-{number % 3}"
        return bytes(cache.get_or_fetch(key, lambda: fetch(key), 4096))

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, range(96)))
    assert found == [f"key-{number % 3}".encode() * 1000 for number in range(96)]
    assert sorted(fetched) == ["key-0", "key-1", "key-2"]
    assert not list(tmp_path.glob("*/a/*.part"))
    for cache in caches:
        cache.close()


def test_who_fails_lets_the_next_one_fetch(tmp_path: Path) -> None:
    first, second = (DiskCache(tmp_path, None, "a") for _ in range(2))
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> memoryview:
        begun.set()
        go_on.wait()
        raise OSError("the storage is away")

    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(first.get_or_fetch, "key", fail)
        begun.wait()
        # Called by the second one when it finds that it has to wait.
        waiting = pool.submit(
            second.get_or_fetch, "key", lambda: memoryview(b"value"), 0, lambda _: go_on.set()
        )
        assert waiting.result() == b"value"
        with pytest.raises(OSError, match="away"):
            failing.result()
    assert second.get("key") == b"value"
    for cache in (first, second):
        cache.close()


def test_nobody_waits_for_ever_for_another_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(disk_cache, "_WAIT_SECONDS", 0.0)
    first, second = (DiskCache(tmp_path, None, "a") for _ in range(2))

    def ask_the_other() -> memoryview:
        assert second.get_or_fetch("key", lambda: memoryview(b"own"), 0) == b"own"
        return memoryview(b"value")

    assert first.get_or_fetch("key", ask_the_other) == b"value"
    assert second.get("key") == b"value"
    for cache in (first, second):
        cache.close()


def test_a_disk_that_becomes_read_only_ends_neither_the_training_nor_the_waiting_of_others(
    tmp_path: Path, monkeypatch
) -> None:
    first, second = (DiskCache(tmp_path, None, "a") for _ in range(2))

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as read_only:
        for name in ("rename", "unlink"):
            read_only.setattr(os, name, refuse)
        put(first, "key", b"value")
    found = second.get_or_fetch(
        "key", lambda: memoryview(b"own"), 0, lambda _: pytest.fail("it waits")
    )
    assert found == b"own"
    assert second.get("key") == b"own"
    for cache in (first, second):
        cache.close()


def test_an_entry_that_was_cut_short_takes_no_room_from_others(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 2 * FAR, "a")
    put(cache, "far", b"a value", FAR)
    [path] = tmp_path.glob("*/a/far")
    os.truncate(path, 0)
    assert cache.get("far", FAR) is None
    [used] = tmp_path.glob("*/used")
    assert int(used.read_text()) < 100
    cache.close()


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"9" * 5_000])
def test_a_damaged_count_of_bytes_is_made_anew(tmp_path: Path, content: bytes) -> None:
    DiskCache(tmp_path, 100, "a").close()
    [used] = tmp_path.glob("*/used")
    used.write_bytes(content)
    cache = DiskCache(tmp_path, 100, "a")
    put(cache, "key", b"value")
    assert cache.get("key") == b"value"
    cache.close()


def test_no_link_in_the_folder_is_written_through(tmp_path: Path) -> None:
    """Another user who may rename the folder can put a folder of links there."""
    DiskCache(tmp_path, 100, "a").close()
    (root,) = tmp_path.iterdir()
    (thesis := tmp_path / "thesis").write_text("years of work")
    (root / "used").unlink()
    (root / "used").symlink_to(thesis)
    with pytest.raises(OSError, match="symbolic link"):
        DiskCache(tmp_path, 100, "a")
    assert thesis.read_text() == "years of work"


def open_files(folder: Path) -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(str(folder))]


def test_a_cache_that_nobody_closes_makes_room_for_others(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100, "a")
    put(cache, "key", bytes(90))
    del cache
    gc.collect()
    assert open_files(tmp_path) == []
    later = DiskCache(tmp_path, 100, "b")
    put(later, "key", bytes(90))
    assert later.get("key") is not None
    later.close()


def test_an_interrupted_wait_leaves_no_file_open(tmp_path: Path) -> None:
    first, second = (DiskCache(tmp_path, None, "a") for _ in range(2))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    def fetch() -> memoryview:
        before = open_files(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            second.get_or_fetch("key", lambda: memoryview(b"own"), 0, interrupt)
        assert sorted(open_files(tmp_path)) == sorted(before)
        return memoryview(b"value")

    assert first.get_or_fetch("key", fetch) == b"value"
    for cache in (first, second):
        cache.close()


def test_bytes_that_are_gone_are_no_longer_counted(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 100, "a")
    assert cache._place.reserve(60)
    for _ in range(2):  # What is gone may be told twice: never less than nothing is in use.
        assert cache._place.reserve(-60)
        with cache._place._accounts() as used:
            assert used == 0
    cache.close()

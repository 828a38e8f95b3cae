"""Entries of the cache on the local disk: where their values lie, and what damage does."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sparkdl_runner.data.read.disk_cache import DiskCache

FAR = 1 << 30


def test_a_value_is_read_at_its_place_and_takes_no_room_before_it(tmp_path: Path) -> None:
    first, second = (DiskCache(tmp_path, 100_000, "a") for _ in range(2))
    value = os.urandom(50_000)
    first.put("far", value, FAR)
    for cache in (first, second):
        stream = cache.open("far", FAR)
        assert stream is not None
        assert stream.read_at(len(value), FAR) == value
        assert cache.get("far", FAR) == value
        cache.close()
    first.close()
    later = DiskCache(tmp_path, 100_000, "b")
    later.put("more", os.urandom(40_000))
    assert later.get("more") is not None, "what lies before a value does not count"
    later.close()


def test_damage_is_found_by_whoever_has_not_read_the_entry(tmp_path: Path, caplog) -> None:
    cache = DiskCache(tmp_path, None, "a")
    cache.put("key", b"a value", 4096)
    [path] = tmp_path.glob("*/a/key")
    content = bytearray(path.read_bytes())
    content[4097] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert cache.open("key", 4096) is None, "the file was changed after it was written"
    assert "was damaged and is fetched again" in caplog.text
    assert not path.exists()
    cache.put("key", b"a value", 4096)
    assert cache.get("key", 4096) == b"a value"
    path.write_bytes(b"")
    assert cache.get("key", 4096) is None
    cache.close()

"""Memory that is let go is used again, within the limit, and unmapped at the end."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.remote.memory_pool import MemoryPool

MIB = 1 << 20


def address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)


def is_mapped(place: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    bounds = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return any(begin <= place < end for begin, end in bounds)


def pool_of(mib: int) -> MemoryPool:
    return MemoryPool(mib * MIB, threading.Event())


def test_the_next_row_group_gets_the_memory_of_the_last() -> None:
    pool = pool_of(64)
    first = pool.take(20 * MIB - 900_000)
    assert first is not None
    place = address(first)
    first[:3] = b"abc"
    del first
    for size in (20 * MIB, 20 * MIB - 1_000_000, 20 * MIB - 1):  # They are never quite as large.
        second = pool.take(size)
        assert second is not None
        assert (address(second), len(second)) == (place, size)
        assert second[:3] == b"abc"  # New pages would be empty.
        del second


def test_what_passed_to_a_disk_is_not_kept() -> None:
    pool = pool_of(64)
    with pool.passing(20 * MIB) as memory:
        place = address(memory)
        del memory
    assert (pool._used_bytes, pool._kept_bytes) == (0, 0)
    assert not is_mapped(place)


def test_what_passes_uses_the_memory_of_what_has_just_passed() -> None:
    pool = pool_of(64)
    with pool.passing(20 * MIB):  # As long as this one passes, others may be about to.
        with pool.passing(10 * MIB) as memory:
            place = address(memory)
            del memory
        assert pool._kept_bytes == 10 * MIB
        with pool.passing(10 * MIB) as memory:
            assert address(memory) == place
            del memory
    assert (pool._used_bytes, pool._kept_bytes) == (0, 0)
    assert not is_mapped(place)


def test_rounding_takes_no_more_than_there_is() -> None:
    pool = pool_of(65)
    held = [pool.take(20 * MIB), pool.take(28 * MIB + MIB // 2)]
    assert None not in held
    assert pool._used_bytes <= 3 * 65 * MIB // 4
    held.clear()
    largest = pool.largest_bytes  # No whole number of MiB.
    with pool.passing(largest), pool.passing(largest):
        assert pool._used_bytes == 2 * largest
    with pool.passing(40 * MIB), pool.passing(2 * largest):
        assert pool._used_bytes <= pool.limit_bytes


def test_memory_is_not_used_again_while_arrow_has_a_part_of_it() -> None:
    pool = pool_of(64)
    first = pool.take(20 * MIB)
    assert first is not None
    place = address(first)
    view = pa.py_buffer(first[MIB : 2 * MIB])
    del first
    second = pool.take(20 * MIB)
    assert second is not None
    assert address(second) != place
    assert pool._used_bytes == 40 * MIB
    del view
    third = pool.take(20 * MIB)
    assert third is not None
    assert address(third) == place


def test_what_is_kept_makes_room_for_what_has_another_size() -> None:
    pool = pool_of(64)
    held = [pool.take(10 * MIB) for _ in range(4)]
    places = [address(one) for one in held if one is not None]
    assert len(places) == 4
    held.clear()
    assert (pool._used_bytes, pool._kept_bytes) == (0, 40 * MIB)
    assert all(map(is_mapped, places))
    large = pool.take(40 * MIB)
    assert large is not None
    assert (pool._used_bytes, pool._kept_bytes) == (40 * MIB, 20 * MIB)
    small = pool.take(MIB)  # It takes none of what is ten times larger.
    assert small is not None
    assert pool._used_bytes == 41 * MIB
    assert pool.take(10 * MIB) is None


def test_what_is_kept_gives_way_beside_what_is_used() -> None:
    pool = pool_of(64)
    held = [pool.take(20 * MIB) for _ in range(2)]
    held.pop()
    assert (pool._used_bytes, pool._kept_bytes) == (20 * MIB, 20 * MIB)
    held.append(pool.take(25 * MIB))
    assert (pool._used_bytes, pool._kept_bytes) == (45 * MIB, 0)


def test_what_is_more_than_the_limit_is_not_kept() -> None:
    pool = pool_of(8)
    large = pool.take(20 * MIB, always=True)
    assert large is not None
    place = address(large)
    del large
    assert (pool._used_bytes, pool._kept_bytes) == (0, 0)
    assert not is_mapped(place)
    large = pool.take(5 * MIB)
    assert large is not None
    pool.limit_bytes = 4 * MIB
    del large
    assert pool._kept_bytes == 0


def test_nothing_is_kept_once_it_is_closed() -> None:
    pool = pool_of(64)
    held = [pool.take(10 * MIB) for _ in range(2)]
    places = [address(one) for one in held if one is not None]
    held.pop()
    assert is_mapped(places[1])
    pool.close()
    assert [is_mapped(place) for place in places] == [True, False]
    held.clear()
    assert not is_mapped(places[0])
    assert (pool._used_bytes, pool._kept_bytes) == (0, 0)


def test_threads_never_share_memory() -> None:
    pool = pool_of(8)

    def fill(number: int) -> bool:
        for turn in range(200):
            size = MIB + 4096 * (turn % 7)
            with pool.passing(size) as memory:
                content = bytes([number]) * 4096
                memory[:4096] = memory[-4096:] = content
                taken = pool.take(size)
                if taken is not None:
                    taken[:4096] = content
                if memory[:4096] != content or memory[-4096:] != content:
                    return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(fill, range(8)))
    gc.collect()
    assert pool._used_bytes == 0
    assert pool._kept_bytes <= pool.limit_bytes
    pool.close()
    assert pool._kept_bytes == 0

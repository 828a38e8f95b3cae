"""What is fetched ahead is what will be taken, in that order and up to a size."""

from __future__ import annotations

import threading
from concurrent.futures import wait

from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.data.remote.read_ahead import ReadAhead

LIMIT = 10


@given(st.lists(st.integers(1, 15), min_size=1, max_size=12))
def test_as_much_is_fetched_as_fits_and_one_in_any_case(sizes: list[int]) -> None:
    lock, fetched = threading.Lock(), list[int]()

    def fetch(key: int) -> int:
        with lock:
            fetched.append(key)
        return -key

    ahead = ReadAhead(fetch, sizes.__getitem__, LIMIT)
    try:
        ahead.add(range(len(sizes)))
        for key in range(len(sizes)):
            wait([future for future, _ in ahead._begun.values()])
            fits = next(
                n for n in range(len(sizes), 0, -1) if n <= key + 1 or sum(sizes[key:n]) <= LIMIT
            )
            assert sorted(fetched) == list(range(fits))
            assert ahead.take(key) == -key
    finally:
        ahead.close()

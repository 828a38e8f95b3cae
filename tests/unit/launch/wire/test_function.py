from __future__ import annotations

import functools
import threading
from dataclasses import replace

import pytest

from sparkdl_runner.errors import NotPicklableError
from sparkdl_runner.launch.driver.calls.call import pack
from sparkdl_runner.launch.wire import function
from sparkdl_runner.rank.world import Peer, assign_ranks

RANK_0 = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="127.0.0.1", interface="lo")],
    backend="torch",
)[0]
LOCK = threading.Lock()


def test_a_result_that_cannot_be_pickled_names_its_type():
    with pytest.raises(NotPicklableError, match="rank 0 returned, a lock, cannot be pickled"):
        function.pack_result(LOCK, RANK_0)


def test_values_of_other_ranks_are_not_pickled():
    assert function.pack_result(LOCK, replace(RANK_0, rank=1)) == b""


def test_values_of_all_ranks_travel_where_they_are_wanted():
    main = function.on_each_rank(functools.partial(pow, 3))
    value = function.call(pack(main, exp=2))
    for rank in range(2):
        packed = function.pack_result(value, replace(RANK_0, rank=rank))
        assert function.unpack_result(packed).value == 9
    with pytest.raises(NotPicklableError, match="rank 1 returned, a lock, cannot be pickled"):
        function.pack_result(function.EachRanksValue(LOCK), replace(RANK_0, rank=1))


def test_a_result_that_the_driver_cannot_unpickle_is_explained():
    with pytest.raises(NotPicklableError, match="cannot be unpickled on the driver"):
        function.unpack_result(b"cnosuchmodule\nthing\n.")


def test_a_missing_module_in_the_worker_is_explained():
    with pytest.raises(RuntimeError, match="--py-files"):
        function.call(b"cnosuchmodule\nthing\n.")


class UnloadableError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def test_exceptions_travel_where_they_can():
    assert isinstance(function.unpack_exception(function.pack_exception(KeyError(1))), KeyError)
    assert function.pack_exception(UnloadableError(1, 2)) == b""
    assert function.pack_exception(ValueError(LOCK)) == b""
    assert function.pack_exception(ValueError(bytes(function.MAX_EXCEPTION_BYTES))) == b""
    assert function.unpack_exception(b"nonsense") is None

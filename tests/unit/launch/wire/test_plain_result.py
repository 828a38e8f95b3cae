"""Plain values of ranks travel as JSON, and are the very same on the driver."""

from __future__ import annotations

import collections
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.launch.driver.returned_values import ReturnedValues
from sparkdl_runner.launch.wire.function import (
    MAX_PLAIN_CHARACTERS,
    EachRanksValue,
    pack_plain_result,
    plain_result,
    unpack_result,
)
from sparkdl_runner.rank.world import Peer, assign_ranks

PEERS = [
    Peer(partition=number, host="h", host_key="k", address="::1", interface="lo")
    for number in range(2)
]
FIRST, SECOND = assign_ranks(PEERS, backend="torch").values()
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN, st.booleans())
def test_a_plain_value_comes_back_as_it_was(value, of_each):
    given_value = EachRanksValue(value) if of_each else value
    found = unpack_result(pack_plain_result(plain_result(given_value, FIRST), FIRST))
    assert type(found) is type(given_value)
    # repr tells True from 1 and -0.0 from 0.0, and takes one NaN for another.
    assert repr(found) == repr(given_value)


def endless():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        [1, (2,)],
        {1: "a"},
        {"a": b"bytes"},
        {"a": np.float64(0.5)},
        collections.OrderedDict(a=1),
        {1, 2},
        endless(),
        "x" * MAX_PLAIN_CHARACTERS,
    ],
)
def test_any_other_value_is_left_to_spark(value):
    assert plain_result(value, FIRST) == ""
    assert plain_result(EachRanksValue(value), SECOND) == ""


def test_of_other_ranks_only_the_end_is_wanted():
    assert json.loads(plain_result((1, 2), SECOND))["value"] is None
    assert pack_plain_result(plain_result(5, SECOND), SECOND) == b""


def test_values_count_once_all_are_there():
    values = ReturnedValues("run")
    for text in ("", "5", "[]", '{"value": 1}', "[" * 100_000):
        values.take(FIRST, text)
    values.take(SECOND, plain_result(None, SECOND))
    assert values.outcomes(2, "executor 1") == []
    values.take(FIRST, plain_result({"accuracy": 0.5}, FIRST))
    first, second = values.outcomes(2, "executor 1")
    assert unpack_result(first.payload) == {"accuracy": 0.5}
    assert (first.world, second.world, second.payload) == (FIRST, SECOND, b"")
    assert first.notes[0].endswith("so their values count: executor 1")
    assert second.notes == ()

"""State that travels with checkpoints, and facts that a rank notes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparkdl_runner.rank import rank_facts, resumable


@pytest.fixture(autouse=True)
def _names_are_let_go() -> Iterator[None]:
    yield
    resumable.unregister("a")
    resumable.unregister("b")


def test_states_are_collected_and_put_back():
    seen = []
    resumable.register("a", lambda: [1], seen.append)
    resumable.register("b", lambda: {"x": 2}, seen.append)
    assert resumable.collect() == {"a": [1], "b": {"x": 2}}
    resumable.put_back({"b": {"x": 3}})
    assert seen == [{"x": 3}]
    resumable.unregister("b")
    resumable.unregister("b")
    assert resumable.collect() == {"a": [1]}


def test_a_state_waits_for_its_owner():
    seen = []
    resumable.put_back({"a": 1})
    resumable.put_back({"a": None})
    resumable.register("a", lambda: 0, seen.append)
    assert seen == [None]
    resumable.unregister("a")
    resumable.register("a", lambda: 0, seen.append)
    assert seen == [None], "it is put once"


def test_facts_are_copied_and_replaced():
    rank_facts.note(checkpoint_step=1, other="x")
    current = rank_facts.current()
    rank_facts.note(checkpoint_step=2)
    assert current["checkpoint_step"] == 1
    assert rank_facts.current()["checkpoint_step"] == 2
    assert rank_facts.current()["other"] == "x"

"""Which ranks are missing in a collective, by what each rank tells of its own calls."""

from __future__ import annotations

import pytest

from sparkdl_runner.launch.driver import stuck_collectives
from sparkdl_runner.launch.wire.messages import Stacks


def call(call, number=0, where="group default_pg", ranks=None, *, done=False):
    return {"call": call, "number": number, "where": where, "ranks": ranks, "done": done}


def sums(number, *, done=False):
    return call("all_reduce(Float [1000])", number, done=done)


def told(*calls):
    return Stacks("", [], {"calls": list(calls)})


ROOT = call("broadcast(Float [7])", 7, done=True)
PAIR = {"where": "group 1", "ranks": [2, 3]}


@pytest.mark.parametrize(
    ("of_rank_2", "missing", "sentence"),
    [
        pytest.param(
            [sums(6, done=True)],
            {2},
            "Ranks 0 to 1, 3 wait in all_reduce(Float [1000]) number 7 of group default_pg, which "
            "rank 2 has not called: the last there was all_reduce(Float [1000]) number 6 of group "
            "default_pg.",
            id="sleeps",
        ),
        pytest.param([], {2}, "which rank 2 has not called.", id="has called nothing"),
        pytest.param(
            [call("broadcast(Float [7])", 7)],
            {2},
            "the last there was broadcast(Float [7]) number 7",
            id="another order",
        ),
        pytest.param(
            [sums(8), ROOT], {2}, "the last there was all_reduce", id="another order, as its root"
        ),
        pytest.param(
            [call("all_reduce(Float [9])", 7)],
            {2},
            "the last there was all_reduce(Float [9]) number 7",
            id="another shape",
        ),
        pytest.param(
            [call("all_reduce(Float [1000])", 1, **PAIR), sums(6, done=True)],
            {2},
            "Ranks 0 to 1, 3 wait in all_reduce(Float [1000]) number 7",
            id="another group",
        ),
        pytest.param([sums(7)], set(), "", id="none is missing"),
        pytest.param([sums(7, done=True)], set(), "", id="it has left"),
    ],
)
def test_the_rank_that_is_missing(of_rank_2, missing, sentence):
    stacks = {rank: told(sums(6, done=True), sums(7)) for rank in (0, 1, 3)} | {2: told(*of_rank_2)}
    found = stuck_collectives.find(range(4), stacks)
    assert stuck_collectives.missing(found) == missing
    assert sentence in " ".join(map(str, found))
    assert bool(found) == bool(missing)


def test_who_is_waited_for_by_one_that_is_waited_for_by_many():
    """Rank 3 sleeps. Rank 2 waits for it, and so all others wait for rank 2."""
    stacks = {rank: told(sums(7)) for rank in (0, 1)}
    stacks |= {2: told(call("all_reduce(Float [5])", 1, **PAIR)), 3: told(sums(7, done=True))}
    assert stuck_collectives.missing(stuck_collectives.find(range(4), stacks)) == {3}


def test_of_two_ranks_that_wait_for_one_another_neither_is_missing():
    stacks = {0: told(call("allreduce a(float32 [1])")), 1: told(call("allreduce b(float32 [1])"))}
    found = stuck_collectives.find(range(2), stacks)
    assert str(found[0]) == (
        "Rank 0 waits in allreduce a(float32 [1]) of group default_pg, which rank 1 has not "
        "called: the last there was allreduce b(float32 [1]) of group default_pg."
    )
    assert len(found) == 2
    assert not stuck_collectives.missing(found)


def test_ranks_that_have_told_nothing_or_do_not_run_are_not_called_missing():
    stacks = {0: told(sums(7)), 1: Stacks("no answer", []), 2: told(sums(6, done=True))}
    assert not stuck_collectives.find([0, 1], stacks)


def test_where_a_rank_waits_is_a_paragraph_of_its_stacks():
    assert stuck_collectives.place(told(sums(8), sums(7), sums(6, done=True))) == (
        "\n\nIt waits in all_reduce(Float [1000]) number 7 of group default_pg; "
        "all_reduce(Float [1000]) number 8 of group default_pg."
    )
    assert stuck_collectives.place(told(sums(6, done=True))) == ""
    assert stuck_collectives.place(Stacks("", [])) == ""

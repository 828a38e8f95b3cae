"""What ranks tell of their loaders, and what the driver makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdl_runner.errors import WorkerFailedError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.diagnosis import root_cause, to_error
from sparkdl_runner.launch.driver.local_launcher import LocalGang
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.messages import LoaderPlan
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank import loader_plans
from sparkdl_runner.rank.loader_plans import LoaderPlans, place_of_caller
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLDS = assign_ranks(
    [
        Peer(partition=rank, host="h", host_key="k", address="127.0.0.1", interface="lo")
        for rank in range(3)
    ],
    backend="torch",
)

ATTEMPT = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="r")


def plan(place: str = "train.py:7", turn: int = 1, **settings: object) -> dict[str, object]:
    order = {"seed": 0, "lanes": 8, **settings}
    arguments = {"seed": order["seed"], "memory_budget_bytes": None}
    return {"data": "/x", "place": place, "turn": turn, "order": order, "arguments": arguments}


def test_a_difference_is_told_once_with_its_values_and_ranks():
    plans = LoaderPlans()
    assert plans.compare(WORLDS[0], plan()) is None
    assert plans.compare(WORLDS[1], plan()) is None
    told = plans.compare(WORLDS[2], plan(seed=5))
    assert told is not None
    assert "seed is 0 on ranks 0, 1, 5 on rank 2. Its loader is made in train.py:7." in told
    assert plans.compare(WORLDS[1], plan(turn=2, seed=5)) is None
    assert plans.compare(WORLDS[0], plan(turn=2)) is None


def test_what_all_have_told_is_forgotten():
    plans = LoaderPlans()
    for rank in (2, 0, 1):
        assert plans.compare(WORLDS[rank], plan()) is None
    assert not plans._plans


def test_what_follows_from_no_argument_is_named_by_itself():
    plans = LoaderPlans()
    plans.compare(WORLDS[0], plan())
    assert "lanes is 8 on rank 0, 4 on rank 1." in str(plans.compare(WORLDS[1], plan(lanes=4)))


def test_a_loader_of_one_rank_alone_is_compared_with_none():
    plans = LoaderPlans()
    told = [
        plans.compare(WORLDS[0], plan("train.py:3", seed=9)),  # Rank 0 validates first,
        plans.compare(WORLDS[1], plan()),
        plans.compare(WORLDS[0], plan()),
        plans.compare(WORLDS[0], plan("train.py:3", turn=2, seed=9)),  # and after each epoch.
        plans.compare(WORLDS[0], plan(turn=2, epoch=1)),
        plans.compare(WORLDS[1], plan(turn=2, epoch=1)),
    ]
    assert told == [None] * 6


def test_a_difference_ends_the_run_though_all_ranks_have_returned(monkeypatch):
    gang, ended = LocalGang(ATTEMPT, 2, ()), []
    monkeypatch.setattr(gang, "end_ranks", lambda: ended.append("all"))
    gang.take(WORLDS[0], LoaderPlan(plan()))
    gang.take(WORLDS[1], LoaderPlan(plan(seed=1)))
    assert ended == ["all"]
    ends = [Outcome(world=WORLDS[rank], status=Status.RETURNED, ended_at=0.0) for rank in (0, 1)]
    outcomes = gang.ends(ends)
    cause = root_cause(outcomes)
    assert cause is not None
    error = to_error(cause, outcomes)
    assert isinstance(error, WorkerFailedError)
    assert str(error).startswith("Rank 1 of 3 on host h reads its data in another order than")


def told_by(*lists: list[dict[str, object]]) -> LoaderPlans:
    """What is left when as many ranks have returned, each of which told a list of plans."""
    plans = LoaderPlans()
    worlds = [replace(WORLDS[rank], size=len(lists)) for rank in range(len(lists))]
    for turn in range(max(map(len, lists))):
        for world, mine in zip(worlds, lists, strict=True):
            if turn < len(mine):
                assert plans.compare(world, mine[turn]) is None
    return plans


def test_loaders_made_on_other_lines_are_compared_at_the_end():
    same = told_by([plan("train.py:3", seed=4)], [plan("train.py:5", seed=4)])
    assert same.compare_left_over() is None
    look, mine = plan("train.py:2", lanes=2), plan("train.py:3", seed=4)
    found = told_by([look, mine], [plan("train.py:5", seed=5)]).compare_left_over()
    assert found is not None
    world, sentence = found
    assert world.rank == 1
    assert "seed is 4 on rank 0, 5 on rank 1. Its loader is made in train.py:5." in sentence


def test_what_some_ranks_read_by_themselves_is_compared_with_none_at_the_end_either():
    of_rank_0 = [plan("train.py:2", seed=1), plan("train.py:3", lanes=2), plan()]
    assert told_by(of_rank_0, [plan()]).compare_left_over() is None
    others = [plan("train.py:4", seed=7)]
    assert told_by(of_rank_0[:1], others, []).compare_left_over() is None
    elsewhere = [{**plan("train.py:4", seed=7), "data": "/y"}]
    assert told_by(of_rank_0[:1], elsewhere).compare_left_over() is None


def test_a_difference_found_at_the_end_is_an_error_where_all_returned():
    for status, failures in ((Status.RETURNED, 1), (Status.STOPPED, 0)):
        gang = LocalGang(ATTEMPT, 2, ())
        gang.take(replace(WORLDS[0], size=2), LoaderPlan(plan("train.py:3")))
        gang.take(replace(WORLDS[1], size=2), LoaderPlan(plan("train.py:5", seed=1)))
        gang.ends([Outcome(world=WORLDS[0], status=status, ended_at=0.0)])
        assert [one.world.rank for one in gang.failures] == [1] * failures


def open_loader() -> str:
    return place_of_caller()


def test_places_are_told_apart_by_all_lines_that_lead_there():
    places = [open_loader() for _ in range(2)]
    other = open_loader()
    assert places[0] == places[1] != other
    assert other.startswith("test_loader_plans.py:")


def test_outside_a_rank_and_in_its_children_nothing_is_told(monkeypatch):
    loader_plans.tell("/x", "here", order={}, arguments={})
    sent: list[dict[str, object]] = []
    monkeypatch.setattr(loader_plans, "_send", None)
    monkeypatch.setattr(loader_plans, "_worker_pid", None)
    monkeypatch.setattr(loader_plans, "_turns", type(loader_plans._turns)())
    loader_plans.connect(sent.append)
    for _ in range(2):
        loader_plans.tell("/x", "here", order={"seed": 1}, arguments={})
    assert [one["turn"] for one in sent] == [1, 2]
    monkeypatch.setattr(loader_plans, "_worker_pid", -1)
    loader_plans.tell("/x", "here", order={}, arguments={})
    assert len(sent) == 2


@pytest.fixture(autouse=True)
def _as_before():
    yield
    assert loader_plans._send is None

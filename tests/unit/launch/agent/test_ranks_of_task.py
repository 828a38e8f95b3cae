"""The agents of one Spark task: they begin and end together, and one speaks for all."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from sparkdl_runner.errors import LaunchError
from sparkdl_runner.launch.agent.ranks_of_task import RanksOfTask, seen_by_all, shares
from sparkdl_runner.rank.world import Peer


def peer(place: int) -> Peer:
    return Peer(partition=place, host="h", host_key="h", address="10.0.0.1", interface="eth0")


def test_gpus_are_shared_out_and_local_rank_is_the_number_of_a_ranks_first():
    shared = shares(("a", "b", "c", "d", "e"), 2)
    assert shared == [("a", "b"), ("c", "d")]
    assert seen_by_all(shared) == ("a", "c", "b", "d")
    assert shares((), 2) == [(), ()]
    assert seen_by_all([(), ()]) == ()


def test_the_last_agent_enters_sparks_barrier_for_all():
    met = []

    def exchange(peers):
        met.append(sorted(one.partition for one in peers))
        return {place: f"rank {place}" for place in range(8)}

    ranks = RanksOfTask(range(4, 7), exchange)
    assert ranks.run(lambda place: ranks.gather(peer(place))) == ["rank 4", "rank 5", "rank 6"]
    assert met == [[4, 5, 6]]


def test_a_failure_in_the_barrier_is_every_agents():
    def exchange(peers):
        raise LaunchError("another version")

    ranks = RanksOfTask(range(3), exchange)
    with pytest.raises(LaunchError, match="another version"):
        ranks.run(lambda place: ranks.gather(peer(place)))


def test_an_agent_that_raises_ends_those_that_came_before_it_and_after():
    """A task whose agents each waited for the others would end late, and so would its stage."""
    ranks = RanksOfTask(range(3), lambda peers: {})
    begun, failed = threading.Event(), threading.Event()
    ended = []

    def agent(place: int) -> None:
        stopped = threading.Event()
        if place == 1:
            assert begun.wait(60)
            failed.set()
            raise LaunchError("no memory")
        if place == 2:
            assert failed.wait(60)
        ranks.on_failure(stopped.set)
        begun.set()
        assert stopped.wait(60)
        ended.append(place)

    with pytest.raises(LaunchError, match="no memory"):
        ranks.run(agent)
    assert sorted(ended) == [0, 2]


def test_nobody_waits_in_the_barrier_for_an_agent_that_has_ended():
    ranks = RanksOfTask(range(2), lambda peers: {})
    waiting = []

    def agent(place: int) -> None:
        if place == 0:
            waiting.append(others.submit(ranks.gather, peer(place)))

    with ThreadPoolExecutor() as others:
        ranks.run(agent)
        with pytest.raises(CancelledError):
            waiting[0].result(60)

"""What ranks' reports say of the run: where they are, how far, and with what."""

from __future__ import annotations

from typing import Any

import pytest

from sparkdl_runner.tracking.report.performance import host_entries
from sparkdl_runner.tracking.run import ranks_heard
from sparkdl_runner.tracking.run.ranks_heard import RanksHeard
from sparkdl_runner.world import Peer, World, assign_ranks


def worlds(*host_keys: str, attempt: int = 0) -> list[World]:
    peers = [
        Peer(partition=at, host="node", host_key=key, address="10.0.0.1", interface="eth0")
        for at, key in enumerate(host_keys)
    ]
    return list(assign_ranks(peers, backend="torch", attempt=attempt).values())


def report(step: int | None = None, **facts: Any) -> dict[str, Any]:
    return {
        "step": step,
        "facts": facts,
        "entries": [],
        "steps": 0,
        "samples": 0,
        "running_seconds": 0.0,
        "seconds": {},
    }


def test_where_ranks_are_is_said_once_the_last_is_heard_and_again_after_a_restart() -> None:
    heard = RanksHeard()
    one, two, three = worlds("a", "b", "b")
    assert heard.hear(three, report(gpus=2)) == []
    assert heard.hear(one, report(gpus=1)) == []
    assert heard.hear(one, report(gpus=1)) == []
    # Two hosts of one name are two, and the GPUs of a host count once.
    assert heard.hear(two, report(gpus=2)) == [
        ["param", "hosts", "node (1), node (2)"],
        ["param", "num_hosts", "2"],
        ["param", "world_size", "3"],
        ["param", "gpus", "3"],
    ]
    assert heard.hear(two, report(gpus=2)) == []
    heard.begin_attempt()
    (alone,) = worlds("a", attempt=1)
    assert ["param", "world_size", "1"] in heard.hear(alone, report())


def test_what_rank_0_learns_is_told_once_and_again_when_it_changes() -> None:
    heard = RanksHeard()
    zero, one = worlds("a", "a")
    heard.hear(one, report(batch_size_per_rank=5))
    assert heard.entries() == [], "rank 0 alone speaks for all"
    heard.hear(zero, report(batch_size_per_rank=8, steps_per_epoch=100))
    assert heard.entries() == [
        ["param", "batch_size_per_rank", "8"],
        ["param", "global_batch_size", "16"],
        ["param", "steps_per_epoch", "100"],
    ]
    assert heard.entries() == []
    heard.hear(zero, report(checkpoint="s3://b/step-7/attempt-0", checkpoint_step=7))
    assert heard.entries() == [
        ["tag", "sparkdl_runner.checkpoint", "s3://b/step-7/attempt-0"],
        ["tag", "sparkdl_runner.checkpoint_step", "7"],
    ]


def test_the_last_step_is_rank_0s_and_never_goes_back() -> None:
    heard = RanksHeard()
    zero, one = worlds("a", "a")
    heard.hear(zero, report(step=7))
    heard.hear(one, report(step=9))
    heard.hear(zero, report(step=3))
    heard.hear(zero, report())
    assert heard.step == 7


def test_the_last_rate_is_that_of_the_whole_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_heard.time, "time", lambda: 1_700_000_000.5)
    heard = RanksHeard()
    zero, one = worlds("a", "a")
    assert heard.last_entries() == []
    told = {**report(step=10), "steps": 10, "running_seconds": 2.0}
    for world, samples in ((zero, 100), (one, 140)):
        heard.hear(world, {**told, "samples": samples})
    assert {entry[3] for entry in heard.entries()} == {1_700_000_000_500}
    assert heard.last_entries() == [
        ["metric", "samples_per_second", 120.0, 1_700_000_000_500, 10, {}]
    ]


def test_what_hosts_measure_is_told_by_host_where_there_are_several() -> None:
    told = {}
    for keys in (("a", "a"), ("a", "b")):
        entries = host_entries(worlds(*keys)[-1], {"cpu": 0.5}, began_at=100.25, now=103.5)
        told[keys] = entries
    assert told["a", "a"] == [["metric", "system/cpu", 0.5, 103_500, 3, {}]]
    assert told["a", "b"] == [["metric", "system/node-host1/cpu", 0.5, 103_500, 3, {}]]

"""What ranks' reports say of the run: where they are, how far, and with what."""

from __future__ import annotations

from typing import Any

import pytest

from one_module import replace_in
from sparkdl_runner.rank.world import Peer, World, assign_ranks
from sparkdl_runner.tracking.report.performance import Counts, host_entries
from sparkdl_runner.tracking.run import rank_reports
from sparkdl_runner.tracking.run.rank_reports import RankReports
from sparkdl_runner.tracking.time_use import PARTS


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


def test_a_rank_that_has_made_no_step_reports_no_seconds() -> None:
    assert Counts.of(report()).seconds == dict.fromkeys(PARTS, 0.0)


def test_where_ranks_are_is_logged_once_the_last_has_reported_and_again_after_a_restart() -> None:
    reports = RankReports()
    one, two, three = worlds("a", "b", "b")
    assert reports.add(three, report(gpus=["0", "1"])) == []
    assert reports.add(one, report(gpus=["0"])) == []
    assert reports.add(one, report(gpus=["0"])) == []
    # Two hosts of one name are two, and the GPUs of a host count once.
    assert reports.add(two, report(gpus=["0", "1"])) == [
        ["param", "world_size", "3"],
        ["tag", "sparkdl_runner.hosts", "node (1), node (2)"],
        ["tag", "sparkdl_runner.num_hosts", "2"],
        ["tag", "sparkdl_runner.gpus", "3"],
    ]
    assert reports.add(two, report(gpus=["0", "1"])) == []
    reports.begin_attempt()
    (alone,) = worlds("a", attempt=1)
    assert ["param", "world_size", "1"] in reports.add(alone, report())


def test_what_rank_0_learns_is_told_once_and_again_when_it_changes() -> None:
    reports = RankReports()
    zero, one = worlds("a", "a")
    reports.add(one, report(batch_size_per_rank=5))
    assert reports.entries() == [], "rank 0 alone speaks for all"
    reports.add(zero, report(batch_size_per_rank=8, steps_per_epoch=100))
    assert reports.entries() == [
        ["param", "batch_size_per_rank", "8"],
        ["param", "global_batch_size", "16"],
        ["param", "steps_per_epoch", "100"],
    ]
    assert reports.entries() == []
    reports.add(zero, report(checkpoint="s3://b/step-7/attempt-0", checkpoint_step=7))
    assert reports.entries() == [
        ["tag", "sparkdl_runner.checkpoint", "s3://b/step-7/attempt-0"],
        ["tag", "sparkdl_runner.checkpoint_step", "7"],
    ]
    reports.begin_attempt()
    assert reports.hosts() == {}, "of this attempt alone"
    reports.add(zero, report())
    assert reports.hosts() == {0: "node"}
    assert reports.checkpoint_step == 7, "of all attempts"


def test_skipped_images_of_all_ranks_and_attempts_are_one_metric_and_a_sentence() -> None:
    reports = RankReports()
    zero, one = worlds("a", "a")
    reports.add(zero, report(step=7, skipped_images=2))
    reports.add(one, report(skipped_images=1))
    (told,) = [entry for entry in reports.entries() if entry[1] == "skipped_images"]
    assert (told[2], told[4]) == (3, 7)
    assert not [entry for entry in reports.entries() if entry[1] == "skipped_images"], "once"
    reports.begin_attempt()
    reports.add(worlds("a", attempt=1)[0], report(skipped_images=4))
    (told,) = [entry for entry in reports.entries() if entry[1] == "skipped_images"]
    assert told[2] == 7


def test_the_last_step_is_rank_0s_and_never_goes_back() -> None:
    reports = RankReports()
    zero, one = worlds("a", "a")
    reports.add(zero, report(step=7))
    reports.add(one, report(step=9))
    reports.add(zero, report(step=3))
    reports.add(zero, report())
    assert reports.step == 7


def test_the_last_rate_is_that_of_the_whole_training(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_in(monkeypatch, rank_reports, "time", time=lambda: 1_700_000_000.5)
    reports = RankReports()
    zero, one = worlds("a", "a")
    assert reports.last_entries() == []
    told = {**report(step=10), "steps": 10, "running_seconds": 2.0}
    for world, samples in ((zero, 100), (one, 140)):
        reports.add(world, {**told, "samples": samples})
    assert {entry[3] for entry in reports.entries()} == {1_700_000_000_500}
    last = ["metric", "samples_per_second", 120.0, 1_700_000_000_500, 10, {}]
    assert reports.last_entries() == [last]
    told = {**report(step=20), "steps": 20, "running_seconds": 3.0}
    for world, samples in ((zero, 200), (one, 280)):
        reports.add(world, {**told, "samples": samples})
    entries = reports.last_entries()
    assert [entry[2] for entry in entries if entry[1] == "samples_per_second"] == [160.0]
    assert any(entry[1] == "system/step_seconds/total" for entry in entries)


def test_the_steps_that_are_left_take_as_long_as_those_of_this_attempt() -> None:
    reports = RankReports()
    (zero,) = worlds("a")
    told = {**report(step=10), "steps": 4, "running_seconds": 2.0}
    reports.add(zero, told)
    assert reports.seconds_left() is None, "nobody has said how many there will be"
    reports.add(zero, {**told, "total_steps": 40})
    assert reports.seconds_left() == 15.0
    reports.add(zero, {**told, "step": 41, "total_steps": 40})
    assert reports.seconds_left() == 0.0


def test_what_hosts_measure_is_told_by_host_where_there_are_several() -> None:
    told = {}
    for keys in (("a", "a"), ("a", "b")):
        entries = host_entries(worlds(*keys)[-1], {"cpu": 0.5}, began_at=100.25, now=103.5)
        told[keys] = entries
    assert told["a", "a"] == [["metric", "system/cpu", 0.5, 103_500, 3, {}]]
    assert told["a", "b"] == [["metric", "system/node-host1/cpu", 0.5, 103_500, 3, {}]]

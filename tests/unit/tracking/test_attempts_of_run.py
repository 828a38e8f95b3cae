"""What the page shows of an attempt's time: its last point is what the final line says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.tracking.run import attempts as module
from sparkdl_runner.tracking.run.attempts import GOODPUT, Attempts
from sparkdl_runner.tracking.run.rank_reports import RankReports
from sparkdl_runner.tracking.time_use import CHECKPOINT, DATA
from sparkdl_runner.world import Peer, assign_ranks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.now))
    monkeypatch.setattr(
        "sparkdl_runner.tracking.run.rank_reports.time", SimpleNamespace(time=lambda: clock.now)
    )
    return clock


def goodput_in(entries: list[Any]) -> list[float]:
    return [entry[2] for entry in entries if entry[:2] == ["metric", GOODPUT]]


def test_the_last_goodput_is_that_of_the_final_line(clock: SimpleNamespace) -> None:
    data = SimpleNamespace(tags={})
    run = SimpleNamespace(data=data, info=SimpleNamespace(start_time=1_000_000))
    ranks = RankReports()
    attempts = Attempts(ranks, SimpleNamespace(run=run, is_ours=True), 0)  # type: ignore[arg-type]
    attempts.begin(0)
    clock.now = 1010.0
    assert goodput_in(attempts.entries()) == [], "no step was done"
    told = {"step": 41, "steps": 40, "samples": 0, "running_seconds": 60.0, "facts": {}}
    parts = {DATA: 6.0, CHECKPOINT: 4.0}
    peer = Peer(partition=0, host="node", host_key="a", address="10.0.0.1", interface="eth0")
    (world,) = assign_ranks([peer], backend="torch").values()
    ranks.add(world, {**told, "seconds": parts, "first_step_seconds_ago": 0.0, "entries": []})
    clock.now = 1080.0
    assert goodput_in(attempts.entries()) == [50 / 80]
    clock.now = 1100.0
    assert goodput_in(attempts.end("", "")) == [50 / 100]
    assert attempts.sentence().startswith("goodput 50.0% of 100 s (start 10.0%, input 6.0%,")
    assert attempts.entries() == []

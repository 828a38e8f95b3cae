"""The state of a run while it trains, of which page, report and description are made."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from sparkdl_runner.base.redaction import Redactor
from sparkdl_runner.rank.world import Peer, assign_ranks
from sparkdl_runner.tracking.report.page import sections_of
from sparkdl_runner.tracking.report.performance import Counts
from sparkdl_runner.tracking.report.run_summary import RATE
from sparkdl_runner.tracking.run import run_state
from sparkdl_runner.tracking.run.run_state import MAX_LINES, RESOLUTION, RunState

PEERS = [
    Peer(partition=i, host=f"h{i}", host_key=f"h{i}", address="10.0.0.1", interface="e")
    for i in range(2)
]
WORLDS = assign_ranks(PEERS, backend="torch")


def report(step: int | None, **latest: float) -> dict[str, Any]:
    counts = vars(Counts(steps=step or 0, samples=10 * (step or 0), running_seconds=2.0))
    rest = {"total_steps": 900, "first_step_seconds_ago": 2.0, "facts": {}, "latest": latest}
    return {**counts, **rest, "step": step, "epoch": None}


def metric(name: str, value: float, step: int) -> list[Any]:
    return ["metric", name, value, 0, step, {}]


def curve(points: list[tuple[int, float]]) -> list[tuple[float, float]]:
    state = RunState("train", Redactor())
    for step, value in points:
        state.logged(WORLDS[0], [metric("loss", value, step)])
    return state.summary().curves.get("loss", [])


def test_a_curve_has_few_points_and_the_newest_and_repeated_steps_replace_earlier_ones() -> None:
    assert curve([(1, 3.0), (2, 2.0), (3, 1.0), (2, 2.5)]) == [(1, 3.0), (2, 2.5)]
    assert curve([(1, float("nan")), (2, float("inf"))]) == []
    long = curve([(step, 1 / step) for step in range(1, 20_001)])
    assert long[0] == (1, 1.0)
    assert long[-1] == (20_000, 1 / 20_000)
    assert len(long) < 10 / RESOLUTION
    assert max(right[0] - left[0] for left, right in pairwise(long)) <= 200


def test_all_that_the_page_shows_comes_from_reports(monkeypatch: Any) -> None:
    clock = SimpleNamespace(now=100.0)
    clock.time = lambda: clock.now
    monkeypatch.setattr(run_state, "time", clock)
    state = RunState("train", Redactor(["hunter22hunter22"]))
    state.begin_attempt(0)
    assert "<h1>train: running</h1>" in sections_of(state.summary()), "before any report"
    for step in (10, 20, 30):
        clock.now += 5
        for rank in (1, 0):
            state.progress(WORLDS[rank], report(step, hunter22hunter22=0.5))
    state.host_metrics(WORLDS[0], {"system_memory_usage_percentage": 40.0, "cpu": 9.0})
    state.host_metrics(
        WORLDS[1], {"system_memory_usage_percentage": 41.0, "gpu_0_memory_usage_percentage": 90.0}
    )
    assert not state.printed(WORLDS[1], [f"<b>\x1b[1mline {number}" for number in range(100)])
    state.slow_ranks("rank 1 is slow")
    assert "<h2>Preflight" not in sections_of(state.summary()), "none was made"
    state.preflight({"lines": ["preflight: one", "preflight: <b>"]})
    told = sections_of(state.summary())
    assert '<progress max="900" value="30"></progress>' in told
    assert "redacted 0.5 · time 15 s · time left " in told
    assert "last step 30 of 900 · samples/s 300 · memory 41% on h1 · GPU memory 90% on h1" in told
    assert state.summary().curves[RATE] == [(20, 40), (30, 40)]
    assert "<figure>samples/s <b>40</b>" in told
    assert '<p class="warning">Slow: rank 1 is slow</p>' in told
    assert "<h2>Preflight</h2><pre>preflight: one\npreflight: &lt;b&gt;</pre>" in told
    assert told.count("[rank 1] &lt;b&gt;line ") == MAX_LINES
    assert "<td>is running</td>" in told
    assert "hunter22" not in told
    state.end_attempt(ValueError("it broke: hunter22hunter22"))
    state.end("FAILED", ValueError("it broke: hunter22hunter22"), "")
    told = sections_of(state.summary())
    assert "<h1>train: failed</h1>" in told
    assert "<h2>What ended it</h2><pre>it broke: [redacted]</pre>" in told
    assert "<progress" not in told


def test_of_many_metrics_some_have_curves() -> None:
    state = RunState("train", Redactor())
    entries = [metric(f"m{number}", 1.0, 1) for number in range(50)]
    state.logged(WORLDS[0], [*entries, metric("system/x", 1.0, 1), ["param", "a", "b"]])
    names = state.summary().curves.keys() - {RATE}
    assert names == {f"m{number}" for number in range(7)}

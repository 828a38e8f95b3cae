"""What is said of a training's progress where there is neither terminal nor notebook."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkdl_runner.rank.world import Peer, World, assign_ranks
from sparkdl_runner.tracking.report.progress_lines import LINE_SECONDS, ProgressLines
from sparkdl_runner.tracking.time_use import PARTS

WORLDS: dict[int, World] = assign_ranks(
    [
        Peer(partition=rank, host="a", host_key="a", address="127.0.0.1", interface="lo")
        for rank in range(2)
    ],
    backend="torch",
)


def report(step: int | None, **latest: float) -> dict[str, Any]:
    steps = step or 0
    return {
        "step": step,
        "total_steps": 2000,
        "epoch": 3 if step else None,
        "steps": steps,
        "samples": 10 * steps,
        "running_seconds": steps / 100,
        "seconds": dict.fromkeys(PARTS, 0.0),
        "latest": latest,
    }


def test_ranks_that_have_started_then_a_line_in_half_a_minute_and_the_last_metrics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 100.0
    lines = ProgressLines(now=lambda: now)

    def said() -> list[str]:
        return capsys.readouterr().err.splitlines()

    lines.progress(WORLDS[1], report(None))
    assert said() == []
    lines.progress(WORLDS[0], report(None))
    assert said() == ["sparkdl_runner: 2 ranks on 1 host started"]
    lines.progress(WORLDS[1], report(1200))
    for step in (1, 600, 1199):
        now += LINE_SECONDS / 4
        lines.progress(WORLDS[0], report(step, loss=1.0))
    assert said() == []
    now += LINE_SECONDS / 4
    lines.progress(WORLDS[0], report(1200, loss=0.12345, accuracy=0.5))
    line = "step 1,200 of 2,000, epoch 3, loss 0.1235, accuracy 0.5, 2,000 samples/s"
    assert said() == [f"sparkdl_runner: {line}"]
    now += 10 * LINE_SECONDS
    lines.progress(WORLDS[0], report(1200, loss=0.12345))
    assert said() == [], "nothing is news"
    lines.progress(WORLDS[0], report(1201, loss=0.12))
    lines.progress(WORLDS[0], report(1201, loss=0.12, test_accuracy=0.75))
    lines.close()
    assert said()[-1].endswith(
        "step 1,201 of 2,000, epoch 3, loss 0.12, test_accuracy 0.75, 1,999 samples/s"
    )
    lines.close()
    assert said() == [], "that was the last line"
    for rank in (0, 1):
        lines.progress(replace(WORLDS[rank], attempt=1), report(None))
    assert said() == ["sparkdl_runner: 2 ranks on 1 host started again, attempt 1"]


def test_where_no_metrics_are_told_there_is_nothing_to_say_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ProgressLines()
    lines.progress(WORLDS[0], report(None))
    lines.close()
    assert capsys.readouterr().err == ""

"""The tags and metrics of each attempt of a run: how it ended, and how it used its time."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.tracking.report.goodput import AttemptTime
from sparkdl_runner.tracking.run import attempts as module
from sparkdl_runner.tracking.run.attempts import Attempts


class Ranks:
    """An attempt that makes a step of one second each second, from two seconds after its start."""

    def __init__(self) -> None:
        self.step, self.checkpoint_step, self.begun = 0, None, 0

    def begin_attempt(self) -> None:
        self.begun += 1

    def seconds_left(self) -> float | None:
        return 50.0 if self.step else None

    def time(self, began_at: float, until: float, *, has_failed: bool) -> AttemptTime:
        return AttemptTime(
            began_at=began_at,
            ended_at=until,
            first_step_at=began_at + 2 if self.step else None,
            running_seconds=self.step,
            steps=self.step,
            last_step=self.step,
            checkpoint_step=self.checkpoint_step or 0,
            has_failed=has_failed,
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0, time=lambda: clock.now)
    monkeypatch.setattr(module, "time", clock)
    return clock


def opened(**tags: str) -> Any:
    """A run that was opened three seconds before the driver's first attempt."""
    run = SimpleNamespace(data=SimpleNamespace(tags=tags), info=SimpleNamespace(start_time=997_000))
    return SimpleNamespace(run=run, is_ours=True)


def test_a_failed_attempt_and_the_one_that_followed(clock: SimpleNamespace) -> None:
    ranks: Any = Ranks()
    attempts = Attempts(ranks, opened(), 0)
    assert (attempts.entries(), attempts.sentence()) == ([], "")
    assert attempts.begin(0) == [["tag", "sparkdl_runner.attempt", "0"]]
    assert attempts.entries() == [], "no step was made"
    clock.now, ranks.step, ranks.checkpoint_step = 1005.0, 6, 4
    told = {entry[1]: entry[2:] for entry in attempts.entries()}
    # Of 8 seconds since the run was opened, ranks made steps in 6.
    assert told["system/goodput"] == [0.75, 1_005_000, 6, {}]
    assert told["system/time_left_seconds"] == [50.0, 1_005_000, 6, {}]
    (as_lost,) = told["mlflow.sparkdl_runner.attempt.0.time"]
    assert json.loads(as_lost)["has_failed"] is True
    ended, spent, *_ = attempts.end("rank 1 died\nby SIGKILL", "")
    assert ended == ["tag", "sparkdl_runner.attempt.0.ended_by", "rank 1 died"]
    assert json.loads(spent[2])["has_failed"] is True
    assert attempts.entries() == [], "it has ended"
    (own,) = attempts.own
    assert (own.step, own.checkpoint_step, own.error, own.seconds) == (
        6,
        4,
        "rank 1 died\nby SIGKILL",
        5.0,
    )
    clock.now = 1010.0
    attempts.begin(1)
    clock.now, ranks.step = 1020.0, 8
    ended, spent, goodput, left = attempts.end("", "")
    assert (ended[2], ranks.begun) == ("all ranks returned", 2)
    found = json.loads(spent[2])
    assert (found["began_at"], found["ended_at"], found["has_failed"]) == (1010, 1020, False)
    # 6 s of the first attempt's began anew, and 8 s of 23 remain.
    assert attempts.sentence().startswith("goodput 34.8% of 23 s (")
    assert goodput == ["metric", "system/goodput", 8 / 23, 1_020_000, 8, {}], (
        "the page's last point"
    )
    assert left[1:3] == ["system/time_left_seconds", 50.0]
    assert attempts.sentence().endswith("; at its pace, 50 s of training are left")


def test_nothing_is_said_of_the_time_of_a_function_that_tells_of_one_step_alone(
    clock: SimpleNamespace,
) -> None:
    ranks: Any = Ranks()
    ranks.time = lambda began_at, until, has_failed: AttemptTime(
        began_at=began_at, ended_at=until, first_step_at=began_at + 2, last_step=1
    )
    attempts = Attempts(ranks, opened(), 0)
    attempts.begin(0)
    clock.now, ranks.step = 1005.0, 1
    attempts.end("", "")
    assert attempts.sentence() == ""


def test_times_of_earlier_drivers_count(clock: SimpleNamespace) -> None:
    ranks: Any = Ranks()
    first = Attempts(ranks, opened(), 0)
    first.begin(0)
    clock.now, ranks.step = 1007.0, 8
    _, spent, *_ = first.end("", "more ranks came")
    assert first.own[0].ended_by == "more ranks came"
    clock.now = 1017.0
    second = Attempts(ranks, opened(**{spent[1]: spent[2]}), 1)
    second.begin(1)
    clock.now = 1027.0
    second.end("", "")
    # Of 30 s, 10 s passed between the drivers, and two attempts made steps of which one's count.
    assert second.sentence().startswith("goodput 26.7% of 30 s (")
    assert "restarts 40.0%" in second.sentence()

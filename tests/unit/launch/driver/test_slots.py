"""The wait for slots, and the error if they stay too few."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.errors import LaunchError, RunCancelledError
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.spark import slots
from sparkdl_runner.launch.driver.stop_request import StopRequest

LOCAL: Any = SimpleNamespace(master="local[2]")
CLUSTER: Any = SimpleNamespace(master="spark://h:7077")
CONFIG = RunConfig(slot_wait_seconds=30)


class Clock:
    """The slots that Spark counts, one look after another; the last count stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
        self.now, self.looks, self._counts = 100.0, 0, list(counts)
        self.end = ""
        monkeypatch.setattr(slots, "count_places", self._count)
        monkeypatch.setattr(slots, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(slots, "is_single_host", lambda context: context is LOCAL)
        monkeypatch.setattr(slots, "end_of", lambda context: self.end)
        monkeypatch.setattr(slots, "nothing_fits", lambda context: ("It asks.", ""))
        self.coming = [0]
        monkeypatch.setattr(slots, "coming_executors", self._come)

    def _count(self, context: Any, profile: Any) -> int:
        self.looks += 1
        return self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]

    def _come(self, context: Any) -> int:
        return self.coming.pop(0) if len(self.coming) > 1 else self.coming[0]

    def request(self) -> StopRequest:
        """A request whose wait lets time pass."""
        stop = StopRequest()
        stop.cancelled.wait = self._pass
        return stop

    def _pass(self, seconds: float | None = None) -> bool:
        self.now += seconds or 0
        return False


@pytest.mark.parametrize(
    ("counts", "needed", "config", "least", "ranks"),
    [
        ([4], 4, CONFIG, None, 4),
        ([4], 3, CONFIG, None, 3),
        ([4], 0, CONFIG, None, 4),
        ([1, 2, 3, 4], 4, CONFIG, None, 4),
        ([0, 0, 2], 0, CONFIG, None, 2),
        ([1, 2, 3], 0, RunConfig(slot_wait_seconds=30, min_num_proc=3), None, 3),
        ([2], 4, CONFIG, 2, 2),
        ([3], 4, CONFIG, 2, 3),
    ],
)
def test_as_many_ranks_as_are_asked_for_or_will_do(
    monkeypatch: pytest.MonkeyPatch,
    counts: list[int],
    needed: int,
    config: RunConfig,
    least: int | None,
    ranks: int,
) -> None:
    clock = Clock(monkeypatch, *counts)
    stop = clock.request()
    assert slots.wait_for_slots(CLUSTER, needed, config, least=least, stop=stop) == ranks
    waits = clock.now - 100
    assert waits == (30 if least else 0.5 * (len(counts) - 1))


@pytest.mark.parametrize(
    ("slots_there", "context", "needed", "config", "told"),
    [
        (
            1,
            LOCAL,
            4,
            CONFIG,
            (
                "4 ranks need 4 task slots at once, and the cluster has 1 (master local[2]): ask "
                "for at most 1 rank, or start the session with .master('local[4]')."
            ),
        ),
        (1, CLUSTER, 4, CONFIG, "ask for at most 1 rank, or add executors or cores (spark."),
        (0, CLUSTER, 1, CONFIG, "1 rank needs a task slot, and the cluster has 0 (master"),
        (0, CLUSTER, 4, CONFIG, "has 0 (master spark://h:7077). It asks. Add executors or cores ("),
        (
            1,
            CLUSTER,
            0,
            RunConfig(slot_wait_seconds=30, min_num_proc=2),
            "1 task slot (master spark://h:7077): lower RunConfig.min_num_proc, or add executors",
        ),
    ],
)
def test_too_few_are_told_with_what_to_change(
    monkeypatch: pytest.MonkeyPatch,
    slots_there: int,
    context: Any,
    needed: int,
    config: RunConfig,
    told: str,
) -> None:
    clock = Clock(monkeypatch, slots_there)
    with pytest.raises(LaunchError) as raised:
        slots.wait_for_slots(context, needed, config, least=2, stop=clock.request())
    assert told in str(raised.value)
    assert clock.looks == (1 if context is LOCAL else 61)


def test_the_wait_is_told_every_ten_seconds_and_ends_when_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch, 1, *[2] * 99)
    stop = clock.request()
    assert slots.wait_for_slots(CLUSTER, 4, CONFIG, least=2, stop=stop) == 2
    needed = "s for executors that start, or that other applications have: 4 slots are needed"
    assert capsys.readouterr().err.splitlines() == [
        f"sparkdl_runner: waiting up to 30 {needed}, 1 is there.",
        f"sparkdl_runner: waiting up to 20 {needed}, 2 are there, and 2 will do after that.",
        f"sparkdl_runner: waiting up to 10 {needed}, 2 are there, and 2 will do after that.",
    ]
    stop.cancelled.set()
    with pytest.raises(RunCancelledError):
        slots.wait_for_slots(CLUSTER, 4, CONFIG, stop=stop)


def test_the_wait_is_as_long_as_what_was_asked_for_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, *[1] * 100, 4)
    stop = clock.request()
    assert slots.wait_for_slots(CLUSTER, 4, CONFIG, asked_seconds=60, stop=stop) == 4
    clock = Clock(monkeypatch, *[2] * 100, 4)
    stop = clock.request()
    assert slots.wait_for_slots(CLUSTER, 4, CONFIG, least=2, asked_seconds=60, stop=stop) == 2
    assert clock.now == 130


def test_the_wait_ends_with_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1)
    stop = clock.request()

    def end_after_five_seconds(seconds: float | None = None) -> bool:
        clock.now += seconds or 0
        clock.end = "its session was stopped" if clock.now >= 105 else ""
        return False

    stop.cancelled.wait = end_after_five_seconds
    with pytest.raises(RunCancelledError) as raised:
        slots.wait_for_slots(CLUSTER, 4, CONFIG, stop=stop)
    assert str(raised.value) == (
        "The Spark application ended while the run waited for slots: its session was stopped."
    )
    assert clock.now == 105


def test_a_setting_that_no_worker_meets_is_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0)
    monkeypatch.setattr(slots, "nothing_fits", lambda context: ("It asks.", "Lower this to 2"))
    with pytest.raises(LaunchError, match=r"It asks\. Lower this to 2, or add workers that have m"):
        slots.wait_for_slots(CLUSTER, 4, CONFIG, stop=clock.request())


def test_executors_that_have_a_place_are_waited_for_longer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch, *[1] * 100, 2)
    clock.coming = [2, 1]
    assert slots.wait_for_slots(CLUSTER, 2, CONFIG, stop=clock.request()) == 2
    assert clock.now == 150
    told = capsys.readouterr().err
    assert "2 executors have been given a place and have yet to start, as where a host" in told
    assert "1 executor has been given a place and has yet to start, as where a host" in told
    assert "an environment: waiting up to 590 s more." in told
    assert told.count("waiting up to 30 s for executors") == 1


@pytest.mark.parametrize(
    ("coming", "config", "least", "waits"),
    [
        ([1], CONFIG, None, 630),
        ([1, 1, 0], CONFIG, None, 50),
        ([1], CONFIG, 1, 30),
        ([1], RunConfig(slot_wait_seconds=0), None, 0),
    ],
    ids=["who never start", "who come no more", "where fewer will do", "where nobody waits"],
)
def test_executors_that_have_a_place_are_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
    coming: list[int],
    config: RunConfig,
    least: int | None,
    waits: float,
) -> None:
    clock = Clock(monkeypatch, 1)
    clock.coming = coming
    if least is None:
        with pytest.raises(LaunchError, match="2 ranks need 2 task slots at once"):
            slots.wait_for_slots(CLUSTER, 2, config, least=least, stop=clock.request())
    else:
        assert slots.wait_for_slots(CLUSTER, 2, config, least=least, stop=clock.request()) == 1
    assert clock.now == 100 + waits

"""The future of a run: its progress, its value or error, and its end by somebody else's wish."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest

from sparkdl_runner.errors import RunCancelledError
from sparkdl_runner.launch.driver.calls import run_future
from sparkdl_runner.launch.driver.calls.run_future import LatestProgress, RunFuture, RunProgress
from sparkdl_runner.launch.driver.stop_request import StopRequest


def future() -> RunFuture[int]:
    return RunFuture(StopRequest(), LatestProgress())


def test_it_runs_until_the_value_is_there() -> None:
    one, may_end = future(), threading.Event()

    def run() -> int:
        may_end.wait()
        return 5

    one.start(run)
    assert (one.running(), one.done(), one.progress) == (True, False, None)
    may_end.set()
    assert one.result(120) == 5
    assert (one.running(), one.done(), one.cancelled()) == (False, True, False)
    assert one.cancel() is False, "it had ended before"


def test_an_error_is_the_runs_own() -> None:
    def run() -> int:
        raise KeyError("lost")

    one = future()
    one.start(run)
    with pytest.raises(KeyError, match="lost"):
        one.result(120)


def test_a_cancelled_run_is_told_to_end_and_is_done_when_it_has() -> None:
    stop, interrupted = StopRequest(), threading.Event()
    one: RunFuture[int] = RunFuture(stop, LatestProgress())
    may_begin, may_end = threading.Event(), threading.Event()

    def run() -> int:
        with stop.told_to(lambda _: None, interrupted.set):
            may_begin.set()
            may_end.wait()
            stop.raise_if_cancelled()
        return 5

    one.start(run)
    assert may_begin.wait(120)
    assert one.cancel() is True
    assert interrupted.wait(120)
    assert not one.done()
    may_end.set()
    with pytest.raises(CancelledError):
        one.result(120)
    assert one.cancelled()
    assert one.cancel() is True, "it was cancelled, if by an earlier call"


def test_progress_is_rank_0s_since_its_first_step() -> None:
    reports = LatestProgress()
    report = {"step": None, "total_steps": 0, "epoch": None, "latest": {"loss": 1.0}}
    zero, one = SimpleNamespace(rank=0), SimpleNamespace(rank=1)
    reports.progress(zero, report)
    reports.progress(one, {**report, "step": 3})
    assert reports.latest is None
    reports.progress(zero, {**report, "step": 0})
    assert reports.latest == RunProgress(
        step=0, total_steps=None, epoch=None, metrics={"loss": 1.0}
    )
    reports.progress(zero, {**report, "step": 2, "total_steps": 8, "epoch": 1})
    assert reports.latest == RunProgress(step=2, total_steps=8, epoch=1, metrics={"loss": 1.0})


def test_a_request_to_stop_is_told_to_the_attempt_that_runs_and_to_each_after_it() -> None:
    stop, told = StopRequest(), []
    stop.make("enough")
    stop.make("more than enough")
    assert stop.reason == "enough"
    for _ in range(2):
        with stop.told_to(told.append, lambda: told.append("interrupt")):
            assert told.pop() == "enough"
            assert not told
    stop.cancel()
    with stop.told_to(told.append, lambda: told.append("interrupt")):
        assert told == ["interrupt", "enough"]
    with pytest.raises(RunCancelledError, match=r"cancel\(\)"):
        stop.raise_if_cancelled()


def test_an_attempt_that_is_over_is_told_nothing() -> None:
    stop, told = StopRequest(), []
    with stop.told_to(told.append, lambda: told.append("interrupt")):
        stop.raise_if_cancelled()
    stop.make("enough")
    stop.cancel()
    assert told == []


@pytest.mark.parametrize("reason", ["", "ü" * 101])
def test_a_reason_has_1_to_200_bytes(reason: str) -> None:
    stop = StopRequest()
    with pytest.raises(ValueError, match=f"has {2 * len(reason)} bytes; give 1 to 200"):
        stop.make(reason)
    assert stop.reason == ""
    stop.make("ü" * 100)
    assert stop.reason == "ü" * 100


def test_a_time_limit_stops_and_one_that_was_not_reached_does_not() -> None:
    stop, heard = StopRequest(), threading.Event()
    others = threading.enumerate()
    with stop.after(None), stop.after(600):
        assert stop.reason == ""
    with stop.told_to(lambda _: heard.set(), lambda: None), stop.after(0.01):
        assert heard.wait(120)
    assert stop.reason == "the time limit of 0.01 s is over"
    for timer in set(threading.enumerate()) - set(others):
        timer.join(120)  # Both end by themselves: one was cancelled, and one has done its work.
        assert not timer.is_alive()


def test_a_context_of_spark_connects_own_server_is_no_matter(monkeypatch) -> None:
    monkeypatch.setattr(run_future, "running_context", lambda: SimpleNamespace())
    monkeypatch.setattr(run_future, "is_spark_connect", lambda: True)
    one = future()
    one.start(lambda: 5)
    assert one.result(120) == 5

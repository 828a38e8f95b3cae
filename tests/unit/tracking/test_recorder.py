"""What a rank says: cheap to say, complete, and checked where it is said."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from one_module import replace_in
from sparkdl_runner.launch.wire.frames import MAX_FRAME_BYTES
from sparkdl_runner.rank import resumable
from sparkdl_runner.tracking.rank import metrics
from sparkdl_runner.tracking.rank import recorder as module
from sparkdl_runner.tracking.rank import recorder as recorder_module
from sparkdl_runner.tracking.rank.recorder import OTHER_RANKS_SEND_SECONDS, SEND_SECONDS, Recorder
from sparkdl_runner.tracking.report.performance import Performance
from sparkdl_runner.tracking.time_use import COMMUNICATION, COMPUTE, DATA, PARTS, part_of


@pytest.fixture
def make(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., tuple[Recorder, list[dict[str, Any]]]]]:
    """Makes recorders that send what they are told to send, and nothing on their own."""
    monkeypatch.setattr(module, "SEND_SECONDS", 600.0)
    monkeypatch.setattr(module, "OTHER_RANKS_SEND_SECONDS", 600.0)
    made = []

    def recorder(rank: int = 0) -> tuple[Recorder, list[dict[str, Any]]]:
        reports: list[dict[str, Any]] = []
        one = Recorder(rank, reports.append)
        made.append(one)
        return one, reports

    yield recorder
    for one in made:
        one.close()
    metrics.use(None)


def entries(reports: list[dict[str, Any]]) -> list[list[Any]]:
    return [entry for report in reports for entry in report["entries"]]


def log(recorder: Recorder, step: int, samples: int | None = None, **values: Any) -> None:
    recorder.log_metrics(step, values, samples=samples, epoch=None, total_steps=None)


def test_every_value_of_every_step_is_sent_in_order(make: Any) -> None:
    recorder, reports = make()
    for step in range(1, 5001):
        log(recorder, step, loss=1 / step, accuracy=step / 5000)
    recorder.close()
    said = [(entry[1], entry[4], entry[2]) for entry in entries(reports)]
    assert said[::2] == [("loss", step, 1 / step) for step in range(1, 5001)]
    assert said[1::2] == [("accuracy", step, step / 5000) for step in range(1, 5001)]
    assert max(len(report["entries"]) for report in reports) <= 2000


def test_all_entries_are_counted_those_to_come_among_them_and_those_that_are_none_are_not(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnGpu:
        def __float__(self) -> float:
            raise RuntimeError("the GPU is gone")

    recorder, reports = make()
    with monkeypatch.context() as patch:
        patch.setattr(module, "as_number", lambda _name, value, _step: value)
        log(recorder, 1, loss=0.5, of_lost_gpu=OnGpu())
    recorder.add([["param", "lr", "0.1"]])
    assert recorder.num_entries == 3
    recorder.close()
    assert recorder.num_entries == len(entries(reports)) == 2
    assert sum(report["dropped"] for report in reports) == 1


def test_a_model_is_of_the_newest_step_of_the_functions_own_metrics(make: Any) -> None:
    recorder, _ = make()
    assert metrics.newest_step() == 0
    metrics.use(recorder)
    assert metrics.newest_step() == 0
    recorder.add([["metric", "accuracy", 0.5, 1_000, 3, {}]])
    recorder.add([["metric", "accuracy", 0.4, 1_001, 2, {}]])
    recorder.add([["metric", "system/cpu_utilization_percentage", 9.0, 1_002, 70, {}]])
    assert metrics.newest_step() == 3
    log(recorder, 4, loss=0.1)
    assert metrics.newest_step() == 4


def test_metrics_carry_the_milliseconds_at_which_they_were_said(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, reports = make()
    replace_in(monkeypatch, recorder_module, "time", time=lambda: 1_700_000_000.25)
    log(recorder, 1, loss=1.0)
    replace_in(monkeypatch, recorder_module, "time", time=lambda: 1_700_000_009.5)
    log(recorder, 2, loss=0.5)
    recorder.close()
    assert [entry[3] for entry in entries(reports)] == [1_700_000_000_250, 1_700_000_009_500]


def test_numbers_of_all_kinds(make: Any) -> None:
    recorder, reports = make()
    log(
        recorder,
        np.int64(3),
        a=1,
        b=np.float32(0.5),
        c=np.array(3.0),
        d=True,
    )
    recorder.close()
    found = {entry[1]: entry[2] for entry in entries(reports)}
    assert found == {"a": 1, "b": 0.5, "c": 3, "d": 1}


@pytest.mark.parametrize("value", ["0.5", None, np.ones(2), [1.0], {"a": 1}])
def test_what_is_no_number_is_refused_where_it_is_said(make: Any, value: Any) -> None:
    recorder, _ = make()
    with pytest.raises(TypeError, match=r"the metric 'loss' at step 4 is .* expected a number"):
        log(recorder, 4, loss=value)


def test_names_and_steps_are_checked(make: Any) -> None:
    recorder, _ = make()
    with pytest.raises(ValueError, match="cannot name a metric"):
        recorder.log_metrics(1, {"a;b": 1.0}, samples=None, epoch=None, total_steps=None)
    for step in (1.5, "1", True, None):
        with pytest.raises(TypeError, match="expected a whole number"):
            log(recorder, step, loss=1.0)  # type: ignore[arg-type]


def test_counts_may_be_numpys_and_must_be_whole(make: Any) -> None:
    recorder, reports = make()
    for step in (1, 2):
        recorder.log_metrics(
            step, {}, samples=np.int64(4), epoch=np.int32(2), total_steps=np.int64(9)
        )
    with pytest.raises(TypeError, match=r"samples is 1.5; expected a whole number"):
        log(recorder, 3, samples=1.5)  # type: ignore[arg-type]
    recorder.close()
    last = json.loads(json.dumps(reports[-1]))
    assert (last["samples"], last["epoch"], last["total_steps"]) == (4, 2, 9)


def test_what_goes_wrong_in_sending_is_neither_raised_nor_the_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkdl_runner.tracking.rank.recorder.SEND_SECONDS", 0.05)
    reports: list[dict[str, Any]] = []
    errors = [ValueError("too large")]

    def send(report: dict[str, Any]) -> None:
        if errors:
            raise errors.pop()
        reports.append(report)

    recorder = Recorder(0, send)
    log(recorder, 1, loss=1.0)
    deadline = time.monotonic() + 120
    while not reports:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    log(recorder, 2, loss=0.5)
    recorder.close()
    assert [entry[4] for entry in entries(reports)][-1] == 2
    assert any("too large" in problem for report in reports for problem in report["problems"])


def test_a_checkpoint_of_another_run_is_not_said_in_this_one(make: Any) -> None:
    recorder, reports = make()
    stray = ["metric", "loss", 1.0, 0, 1, {}]
    for state in ({"run_id": "another", "entries": [stray]}, ["nonsense"], None):
        recorder.start()
        resumable.put_back({"metrics": state})
    resumable.put_back({"metrics": {"run_id": "", "entries": [["metric", 1], "x", stray]}})
    recorder.close()
    assert entries(reports) == [stray]


def test_what_is_not_finite_is_sent_and_told_once(make: Any) -> None:
    recorder, reports = make()
    for step in range(1, 4):
        log(recorder, step, loss=float("nan"), norm=float("inf"))
    recorder.close()
    problems = [problem for report in reports for problem in report["problems"]]
    assert problems == ["the metric 'loss' is nan at step 1", "the metric 'norm' is inf at step 1"]
    assert len(entries(reports)) == 6


def test_other_ranks_send_counts_and_no_metrics(make: Any) -> None:
    recorder, reports = make(rank=3)
    for step in range(10, 21):
        log(recorder, step, samples=8, loss=1.0)
    recorder.close()
    assert entries(reports) == []
    last = reports[-1]
    # The first call ends a step that nobody saw begin.
    assert (last["steps"], last["samples"], last["step"]) == (10, 80, 20)


def test_reports_fit_into_a_frame_whatever_is_said(make: Any) -> None:
    recorder, reports = make()
    recorder.add([["param", f"p{index}", "\N{GRINNING FACE}" * 50_000] for index in range(40)])
    recorder.add([["metric", "m" * 250 + str(i), 1.0, 0, i, {}] for i in range(5000)])
    recorder.flush()
    assert len(entries(reports)) == 5040
    assert max(len(json.dumps(report)) for report in reports) < MAX_FRAME_BYTES
    assert {len(entry[2]) for entry in entries(reports)[:40]} == {10_000}


def test_the_last_seconds_travel_with_a_checkpoint(make: Any) -> None:
    recorder, reports = make()
    log(recorder, 1, loss=0.5)
    state = resumable.collect()["metrics"]
    assert [entry[4] for entry in entries(reports)] == [1], "it was sent before it was kept"
    recorder.close()

    later, later_reports = make()
    resumable.put_back({"metrics": state})
    log(later, 2, loss=0.25)
    later.close()
    assert [entry[4] for entry in entries(later_reports)] == [1, 2]


def test_nobody_listening_is_no_error() -> None:
    def gone(_: Any) -> None:
        raise BrokenPipeError

    recorder = Recorder(0, gone)
    log(recorder, 1, loss=1.0)
    recorder.close()


def test_outside_of_a_rank_and_of_a_run_it_does_nothing() -> None:
    metrics.use(None)
    metrics.log_metrics(1, {"a": 1}, loss=0.5, samples=3)
    with pytest.raises(TypeError):
        metrics.log_metrics(1, loss="x")


def test_where_a_thread_is_says_what_it_does() -> None:
    def waiting_in(path: str, there: threading.Event, release: threading.Event) -> None:
        code = compile("there.set()\nrelease.wait()", path, "exec")
        exec(code, {"there": there, "release": release})

    for path, expected in (
        ("/x/sparkdl_runner/data/batches/batch_queue.py", DATA),
        ("/x/torch/utils/data/dataloader.py", DATA),
        ("/x/horovod/torch/mpi_ops.py", COMMUNICATION),
        ("/home/me/train.py", COMPUTE),
    ):
        there, release = threading.Event(), threading.Event()
        thread = threading.Thread(target=waiting_in, args=(path, there, release))
        thread.start()
        there.wait()
        found = part_of(thread)
        release.set()
        thread.join()
        assert found == expected, path


def report(steps: int, samples: int, seconds: float) -> dict[str, Any]:
    return {
        "steps": steps,
        "samples": samples,
        "running_seconds": seconds,
        "seconds": dict.fromkeys(PARTS, seconds / 4),
    }


def test_rates_are_of_what_was_added_and_totals_over_all_attempts() -> None:
    performance = Performance()
    for rank in (0, 1):
        performance.see(rank, report(10, 100, 2.0))
    first = {entry[1]: entry[2] for entry in performance.entries(10, 0, 2)}
    assert first["samples_per_second"] == 100.0
    assert first["system/step_seconds/total"] == pytest.approx(0.2)
    assert performance.entries(10, 0, 2) == [], "nothing was added"
    performance.see(0, report(20, 300, 3.0))
    second = {entry[1]: entry[2] for entry in performance.entries(20, 0, 2)}
    assert second["system/step_seconds/total"] == pytest.approx(0.1)
    assert "samples_per_second" not in second, "the other rank has not told"
    performance.see(0, report(30, 500, 4.0))
    performance.see(1, report(20, 300, 4.0))
    third = {entry[1]: entry[2] for entry in performance.entries(30, 0, 2)}
    assert third["samples_per_second"] == 200.0 + 100.0
    performance.begin_attempt()
    performance.see(0, report(5, 50, 1.0))
    assert performance.totals()[0].samples == 550
    assert performance.totals()[1].samples == 300


def test_ranks_are_shown_one_by_one_in_what_differs_between_them() -> None:
    def shown(seconds: float, compute: float) -> list[str]:
        performance = Performance()
        for rank, computes in ((0, seconds / 4), (1, compute)):
            told = report(10, 100, seconds)
            performance.see(rank, {**told, "seconds": {**told["seconds"], "compute": computes}})
        return [one[1] for one in performance.entries(10, 0, 2) if "/rank_" in one[1]]

    assert shown(60.0, 18.0) == [], "they are alike"
    assert shown(4.0, 4.0) == [], "in so short a time that is chance"
    assert shown(60.0, 40.0) == [f"system/rank_{rank}/step_seconds/compute" for rank in (0, 1)]


def test_the_rate_of_all_ranks_is_told_although_their_words_never_come_together() -> None:
    performance = Performance()
    performance.see(0, report(10, 100, 2.0))
    first = {entry[1] for entry in performance.entries(10, 0, 2)}
    assert "samples_per_second" not in first, "rank 1 was not heard yet"
    performance.see(1, report(10, 300, 2.0))
    second = {entry[1]: entry[2] for entry in performance.entries(10, 0, 2)}
    assert second["samples_per_second"] == 50.0 + 150.0


@pytest.mark.parametrize(("rank", "seconds"), [(0, SEND_SECONDS), (1, OTHER_RANKS_SEND_SECONDS)])
def test_rank_0_whose_metrics_are_shown_sends_more_often(rank: int, seconds: float) -> None:
    waited: list[float] = []
    stopped = SimpleNamespace(wait=lambda pause: waited.append(pause) or True)
    Recorder._run(SimpleNamespace(_rank=rank, _stopped=stopped))
    assert waited == [seconds]
    assert SEND_SECONDS < OTHER_RANKS_SEND_SECONDS

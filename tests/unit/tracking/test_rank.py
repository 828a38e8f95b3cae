"""The facts that a rank reports when its training begins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from sparkdl_runner import tracking
from sparkdl_runner.rank import rank_facts
from sparkdl_runner.tracking.rank import metrics
from sparkdl_runner.tracking.rank import rank_tracking as rank


@pytest.fixture(autouse=True)
def _nobody_records_afterwards() -> Iterator[None]:
    yield
    metrics.use(None)
    rank_facts.send_by(None)


@pytest.mark.parametrize(
    ("named", "on_host", "expected"),
    [
        ("0,3, ", 8, ["0", "3"]),
        ("", 8, []),
        ("-1", 8, []),
        (None, 2, ["0", "1"]),
        (None, None, []),
    ],
)
def test_the_gpus_that_it_sees_are_noted_and_told_at_once(
    monkeypatch: pytest.MonkeyPatch, named: str | None, on_host: int | None, expected: list[str]
) -> None:
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    cuda = SimpleNamespace(device_count=lambda: on_host)
    torch = None if on_host is None else SimpleNamespace(cuda=cuda)
    monkeypatch.setattr(rank_facts, "_facts", {})
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    with monkeypatch.context() as imported:
        imported.setitem(sys.modules, "torch", torch)
        seen = rank._visible_gpus()
    assert seen == expected
    monkeypatch.setattr(rank, "_visible_gpus", lambda: seen)
    reports: list[dict[str, object]] = []
    rank.begin(0, None, reports.append, trace_steps=True).close()
    assert reports[0]["facts"] == {"gpus": expected, "cores": 4}


def test_what_must_not_be_lost_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_facts, "_facts", {})
    monkeypatch.setattr(rank, "_visible_gpus", list)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    reports: list[dict[str, object]] = []
    recorder = rank.begin(0, None, reports.append, trace_steps=True)
    rank_facts.note(restored_step=3)
    assert len(reports) == 1
    rank_facts.tell(checkpoint_step=5)
    assert reports[1]["facts"] == {"gpus": [], "cores": 0, "restored_step": 3, "checkpoint_step": 5}
    recorder.close()


def test_a_forked_process_does_not_speak_for_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[dict[str, object]] = []
    recorder = rank.begin(0, None, reports.append, trace_steps=True)
    monkeypatch.setattr(recorder, "_pid", -1)
    rank_facts.tell(checkpoint_step=5)
    assert len(reports) == 1


def test_a_rank_whose_agent_is_gone_saves_all_the_same() -> None:
    def send(report: object) -> None:
        raise BrokenPipeError

    rank.begin(0, None, send, trace_steps=True).close()
    rank_facts.tell(checkpoint_step=5)


def test_the_package_has_what_it_names_and_nothing_else() -> None:
    for name in tracking.__all__:
        assert getattr(tracking, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'log_everything'"):
        tracking.log_everything  # noqa: B018

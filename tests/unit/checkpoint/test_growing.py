"""The end of a gang that can be larger: with a checkpoint from which more ranks go on."""

from __future__ import annotations

import os
import pickle

import pytest

from sparkdl_runner.checkpoint import CheckpointManager, Growing, should_stop
from sparkdl_runner.rank import stop_request

REASON = "2 → 4 ranks: executor h came back"


@pytest.fixture
def pipe(monkeypatch):
    """The end of the rank's agent; what it says is forgotten after the test."""
    ours, theirs = os.pipe()
    monkeypatch.setattr(stop_request, "_pipe", None)
    monkeypatch.setattr(stop_request, "_told", {})
    stop_request.connect(ours)
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_the_next_save_after_the_request_ends_the_ranks_and_is_whole(pipe, tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.restore()
        checkpoints.save(1, extra=[1])
        os.write(pipe, stop_request.packed(stop_request.GROW, REASON))
        assert not checkpoints.due(2), "no save comes earlier for it"
        with pytest.raises(Growing, match=f"^{REASON}. The training goes on from step 3.$"):
            checkpoints.save(3, extra=[3])
        assert checkpoints.restore().extra == [3]
        assert not checkpoints.preempted
        assert stop_request.reason() == ""


def test_a_save_without_progress_or_of_a_training_that_restores_nothing_goes_on(pipe, tmp_path):
    os.write(pipe, stop_request.packed(stop_request.GROW, REASON))
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1)
        checkpoints.save(2)
    with CheckpointManager(tmp_path) as checkpoints:
        assert checkpoints.restore().step == 2
        checkpoints.save(2)
        with pytest.raises(Growing):
            checkpoints.save(3)


def test_a_save_that_fails_and_may_fail_lets_the_training_go_on(pipe, tmp_path):
    with CheckpointManager(tmp_path, on_save_error="warn", retry_seconds=0.1) as checkpoints:
        checkpoints.restore()
        (tmp_path / "step-1").write_text("in the way")
        os.write(pipe, stop_request.packed(stop_request.GROW, REASON))
        with pytest.warns(UserWarning, match="Training goes on without it"):
            checkpoints.save(1)
        with pytest.raises(Growing):
            checkpoints.save(2)


def test_requests_of_both_kinds_come_whole_and_the_first_of_each_counts(pipe):
    for kind, reason in ((stop_request.GROW, "a\nb"), (stop_request.STOP, "ä" * 150)):
        os.write(pipe, stop_request.packed(kind, reason))
        os.write(pipe, stop_request.packed(kind, "later"))
    assert stop_request.reason() == "ä" * 100
    assert stop_request.growth() == "a b"


def test_a_reason_of_several_lines_is_one_request(pipe):
    os.write(pipe, stop_request.packed(stop_request.STOP, "enough\r\n!all\r+of it"))
    assert stop_request.growth() == stop_request.preemption_reason() == ""
    assert stop_request.reason() == "enough\r !all\r+of it"


def test_the_last_save_of_a_training_that_ends_early_does_not_start_it_again(pipe, tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.restore()
        os.write(pipe, stop_request.packed(stop_request.GROW, REASON))
        assert should_stop("val_loss got no better")
        checkpoints.save(1)
        assert checkpoints.restore().step == 1


def test_growing_travels_between_processes():
    again = pickle.loads(pickle.dumps(Growing(120, REASON)))
    assert (again.step, again.reason) == (120, REASON)
    assert str(again) == f"{REASON}. The training goes on from step 120."

"""What an agent tells of its worker while that has not ended yet."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from sparkdl_runner.launch.agent import supervision
from sparkdl_runner.launch.agent.rank_log import rank_log
from sparkdl_runner.launch.agent.supervision import _Supervision, supervise
from sparkdl_runner.launch.agent.worker_process import WorkerProcess
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.control import Envelope
from sparkdl_runner.launch.wire.messages import Failed, PlainValue, Raised, Returned
from sparkdl_runner.launch.wire.outcome import Status
from sparkdl_runner.rank.world import Peer, assign_ranks

PEER = Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")
WORLD = assign_ranks([PEER], backend="torch")[0]
RAISED = Raised(exception="ValueError", message="bad")


@pytest.mark.parametrize(
    ("end", "was_stopped", "told", "kept"),
    [
        (RAISED, False, [Failed("an outcome")], True),
        (Returned(), False, [], True),
        (Returned(), True, [], True),
        # What is raised after a stop is raised because of it.
        (RAISED, True, [], False),
    ],
)
def test_a_failure_is_told_at_once_and_a_return_at_the_end(end, was_stopped, told, kept):
    heard = []
    rank = SimpleNamespace(
        _was_stopped=was_stopped,
        _end=None,
        _sends_value=False,
        _tell=heard.append,
        _outcome=lambda: "an outcome",
    )
    _Supervision._note(rank, end)
    assert heard == told
    assert (rank._end is not None) == kept


@pytest.mark.parametrize(("plain", "sends"), [("", True), ("{}", True), ("{}", False)])
def test_a_plain_value_is_told_before_the_process_has_ended(plain, sends):
    told = []
    rank = _Supervision.__new__(_Supervision)
    rank._was_stopped, rank._sends_value, rank._tell = False, sends, told.append
    rank._note(Returned(plain, payload=b"packed"))
    assert told == ([PlainValue(plain)] if plain and sends else [])


def test_a_worker_that_was_killed_before_the_stop_came_is_no_stopped_one(tmp_path, monkeypatch):
    """Its peers fail because of it, and may be heard first."""
    monkeypatch.setattr(supervision, "LOOK_SECONDS", 600.0)  # No vital signs among what is told.
    worker = WorkerProcess(backend="torch", environment=dict(os.environ), shutdown_grace_seconds=1)
    attempt = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="r")
    os.kill(worker.pid, signal.SIGKILL)
    worker.await_exit()
    worker.stop()
    told = []
    outcome = supervise(
        worker,
        Envelope.of(attempt, WORLD, environment={}),
        receiver=SimpleNamespace(take=lambda _, message: told.append(message)),
        log=rank_log(str(tmp_path), "r", WORLD),
    )
    assert (outcome.status, outcome.exit_code) == (Status.DIED, -signal.SIGKILL)
    assert told == [Failed(outcome)]

"""When the ranks of an attempt are ended because one has failed."""

from __future__ import annotations

import threading

import pytest

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver import gang
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")], backend="torch"
)[0]
CAUSE = Outcome(world=WORLD, status=Status.DIED, ended_at=0.0)
LOST_PEER = Outcome(world=WORLD, status=Status.FAILED, ended_at=0.0, is_communication_error=True)


class Gang(gang.Gang):
    """A gang of no processes, which notes that it is ended."""

    def __init__(self):
        attempt = AttemptSpec(backend="torch", function=b"", config=RunConfig(), run="r")
        super().__init__(attempt, 1, (), show_output=False)
        self.times_ended = 0

    def run(self):
        return self.ends([])

    def end_ranks(self):
        self.times_ended += 1

    def request_stop(self, reason):
        pass

    def ask_stacks(self):
        return {}


@pytest.fixture
def timer(monkeypatch):
    """Runs what a timer has been started for, if it was not cancelled; the test says when."""
    started = []
    monkeypatch.setattr(gang, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(threading.Timer, "start", lambda self: started.append(self))
    return lambda: [one.run() for one in started]


def test_a_cause_ends_the_gang_at_once_and_only_once():
    ranks = Gang()
    ranks.failed(CAUSE)
    assert ranks.times_ended == 1
    ranks.failed(CAUSE)
    ranks.stop()
    assert ranks.times_ended == 1
    assert ranks.failures == [CAUSE, CAUSE]


def test_a_lost_connection_waits_for_its_cause_to_be_heard(timer):
    ranks = Gang()
    ranks.failed(LOST_PEER)
    assert not ranks.times_ended
    timer()
    assert ranks.times_ended == 1


def test_closing_forgets_an_end_that_is_still_to_come(timer):
    ranks = Gang()
    ranks.failed(LOST_PEER)
    ranks.close()
    timer()
    assert not ranks.times_ended

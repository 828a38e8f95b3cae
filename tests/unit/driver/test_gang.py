"""When the ranks of an attempt are ended because one has failed."""

from __future__ import annotations

import threading

from sparkdl_runner.config import RunConfig
from sparkdl_runner.driver import gang
from sparkdl_runner.wire.attempt import Attempt
from sparkdl_runner.wire.outcome import Outcome, Status
from sparkdl_runner.world import Peer, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")], backend="torch"
)[0]
CAUSE = Outcome(world=WORLD, status=Status.DIED, ended_at=0.0)
LOST_PEER = Outcome(world=WORLD, status=Status.FAILED, ended_at=0.0, is_communication_error=True)


class Gang(gang.Gang):
    """A gang of no processes, which notes that it is ended."""

    def __init__(self):
        attempt = Attempt(backend="torch", function=b"", config=RunConfig(), run="r")
        super().__init__(attempt, 1, (), show_output=False)
        self.times_ended = 0
        self.has_ended = threading.Event()

    def run(self):
        return self.ends([])

    def end_ranks(self):
        self.times_ended += 1
        self.has_ended.set()

    def request_stop(self, reason):
        pass

    def ask_stacks(self):
        return {}


def test_a_cause_ends_the_gang_at_once_and_only_once():
    ranks = Gang()
    ranks.failed(CAUSE)
    assert ranks.times_ended == 1
    ranks.failed(CAUSE)
    ranks.stop()
    assert ranks.times_ended == 1
    assert ranks.failures == [CAUSE, CAUSE]


def test_a_lost_connection_waits_for_its_cause_to_be_heard(monkeypatch):
    monkeypatch.setattr(gang, "SETTLE_SECONDS", 0.05)
    ranks = Gang()
    ranks.failed(LOST_PEER)
    assert not ranks.times_ended
    assert ranks.has_ended.wait(30)


def test_closing_forgets_an_end_that_is_still_to_come(monkeypatch):
    monkeypatch.setattr(gang, "SETTLE_SECONDS", 0.05)
    ranks = Gang()
    ranks.failed(LOST_PEER)
    ranks.close()
    ranks._timer.join()
    assert not ranks.times_ended

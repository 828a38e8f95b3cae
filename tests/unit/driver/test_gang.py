from __future__ import annotations

import threading

import pytest

from sparkdl_runner.driver import gang
from sparkdl_runner.driver.gang import Gang


@pytest.fixture
def stops(monkeypatch):
    monkeypatch.setattr(gang, "SETTLE_SECONDS", 0.05)
    return []


def test_a_cause_stops_the_gang_at_once_and_only_once(stops):
    ranks = Gang(lambda: stops.append("stop"))
    ranks.rank_failed(is_communication_error=False)
    assert stops == ["stop"]
    ranks.rank_failed(is_communication_error=False)
    ranks.stop()
    assert stops == ["stop"]


def test_a_lost_connection_waits_for_its_cause_to_be_heard():
    stopped = threading.Event()
    ranks = Gang(stopped.set)
    ranks.rank_failed(is_communication_error=True)
    assert not stopped.is_set()
    assert stopped.wait(30)


def test_closing_forgets_a_stop_that_is_still_to_come(stops):
    ranks = Gang(lambda: stops.append("stop"))
    ranks.rank_failed(is_communication_error=True)
    ranks.close()
    ranks._timer.join()
    assert stops == []

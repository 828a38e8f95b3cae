"""An agent's wait for its seat."""

import threading

import pytest

from sparkdl_runner.agent import meeting as meeting_module
from sparkdl_runner.agent.meeting import Meeting
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.wire.messages import Gather, Stop


def no_seat():
    raise AssertionError("nobody is to be asked")


def test_a_driver_that_is_reached_gives_up_the_start_before_its_agents_do():
    """An agent that raised would make Spark kill the others, and say less of what is missing."""
    meeting = Meeting()
    timer = threading.Timer(0.3, meeting.answer, [Stop()])
    timer.start()
    assert meeting.seat(no_seat, timeout_seconds=0.05) is None
    timer.join()


def test_an_agent_that_reaches_nobody_says_so(monkeypatch):
    monkeypatch.setattr(meeting_module, "DRIVER_FIRST_SECONDS", 0.0)
    with pytest.raises(RunnerError, match=r"Neither the driver nor .* start_timeout_seconds=0\.1"):
        Meeting().seat(no_seat, timeout_seconds=0.1)


def test_what_goes_wrong_in_sparks_barrier_is_raised():
    def gather():
        raise OSError("the barrier broke")

    meeting = Meeting()
    meeting.answer(Gather())
    with pytest.raises(OSError, match="the barrier broke"):
        meeting.seat(gather, timeout_seconds=30)

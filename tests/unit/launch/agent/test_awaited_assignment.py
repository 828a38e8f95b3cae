"""An agent's wait for its assignment."""

import threading

import pytest

from sparkdl_runner.errors import RunnerError
from sparkdl_runner.launch.agent import awaited_assignment as module
from sparkdl_runner.launch.agent.awaited_assignment import AwaitedAssignment
from sparkdl_runner.launch.wire.messages import Gather, Stop


def no_assignment():
    raise AssertionError("nobody is to be asked")


def test_a_driver_that_is_reached_gives_up_the_start_before_its_agents_do(monkeypatch):
    """An agent that raised would make Spark kill the others, and say less of what is missing."""
    monkeypatch.setattr(module, "DRIVER_FIRST_SECONDS", 120.0)
    awaited = AwaitedAssignment()
    timer = threading.Timer(0.3, awaited.answer, [Stop()])
    timer.start()
    assert awaited.wait(no_assignment, timeout_seconds=0.05) is None
    timer.join()


def test_an_agent_that_reaches_nobody_says_so(monkeypatch):
    monkeypatch.setattr(module, "DRIVER_FIRST_SECONDS", 0.0)
    with pytest.raises(RunnerError, match=r"Neither the driver nor .* start_timeout_seconds=0\.1"):
        AwaitedAssignment().wait(no_assignment, timeout_seconds=0.1)


def test_what_goes_wrong_in_sparks_barrier_is_raised():
    def gather():
        raise OSError("the barrier broke")

    awaited = AwaitedAssignment()
    awaited.answer(Gather())
    with pytest.raises(OSError, match="the barrier broke"):
        awaited.wait(gather, timeout_seconds=120)

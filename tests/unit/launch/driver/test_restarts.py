"""Whether, and when, another attempt is made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkdl_runner import RunConfig
from sparkdl_runner.checkpoint import Preempted
from sparkdl_runner.errors import (
    LaunchError,
    NotPicklableError,
    ResultTooLargeError,
    RunCancelledError,
    RunnerError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerHungError,
)
from sparkdl_runner.launch.driver import restarts
from sparkdl_runner.launch.driver.stop_request import StopRequest
from sparkdl_runner.launch.wire.attempt import AttemptSpec
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.reports import Reports
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLD = assign_ranks(
    [Peer(partition=0, host="h", host_key="k", address="::1", interface="lo")], backend="torch"
)[0]
PLACE = {"rank": 1, "host": "h", "attempt": 0, "output_tail": ()}
DIED = WorkerDiedError("Rank 1 died.", **PLACE)
HUNG = WorkerHungError("Rank 1 hung.", **PLACE, stacks="")
RAISED = WorkerFailedError("Rank 1 raised.", **PLACE, remote_traceback="")
LOST_PEERS = WorkerFailedError(
    "Rank 1 lost its peers.", **PLACE, remote_traceback="", is_communication_error=True
)
NOT_SAVED = WorkerFailedError(
    "Rank 1 could not save.", **PLACE, remote_traceback="", is_worth_a_restart=True
)


def decision(error, config, *, made=0):
    """On an attempt that ended soon, after as many fruitless ones."""
    history = restarts.History(attempts=made, restarts=made, fruitless=made)
    ending = restarts.Ending(error=error, seconds=1.0, has_saved=False)
    return restarts.decide(history, ending, config)


def test_the_backoff_doubles_up_to_a_minute():
    config = RunConfig(max_restarts=6, restart_backoff_seconds=5)
    made = [decision(DIED, config, made=made) for made in range(7)]
    assert [one.wait_seconds for one in made[:6]] == [5, 10, 20, 40, 60, 60]
    assert made[6] is None
    assert made[0].why == "Rank 1 died. Restarting all ranks in 5 s: restart 1 of 6."


@pytest.mark.parametrize(
    "error", [DIED, HUNG, LOST_PEERS, NOT_SAVED, RunnerError("Spark ended the run.")]
)
def test_what_another_attempt_may_survive_is_tried_again(error):
    assert decision(error, RunConfig(max_restarts=1)) is not None


@pytest.mark.parametrize(
    "error",
    [
        RAISED,
        LaunchError("x"),
        NotPicklableError("x"),
        ResultTooLargeError("x"),
        RunCancelledError("x"),
    ],
)
def test_what_would_fail_again_or_was_called_off_is_not(error):
    assert decision(error, RunConfig(max_restarts=9)) is None


def test_errors_of_the_function_are_tried_again_if_asked_for():
    assert decision(RAISED, RunConfig(max_restarts=1, restart_user_errors=True)) is not None


def test_the_error_of_a_later_attempt_says_which_it_was():
    error = WorkerDiedError("Rank 1 died.", **PLACE)
    config = RunConfig(max_restarts=1, restart_backoff_seconds=0)
    with pytest.raises(WorkerDiedError) as caught:
        run_attempts([DIED, error], config, number=7)
    assert caught.value is error
    assert error.__notes__ == ["This was attempt 8, counted from 0."]


def test_ranks_that_cannot_be_started_again_have_run_before():
    config = RunConfig(max_restarts=9, restart_backoff_seconds=0)
    with pytest.raises(RunnerError, match=r"could not be started again\. x") as caught:
        run_attempts([DIED, LaunchError("x")], config)
    assert not isinstance(caught.value, LaunchError)


def test_a_resumed_run_has_all_its_restarts(capsys):
    config = RunConfig(max_restarts=2, restart_backoff_seconds=0)
    with pytest.raises(WorkerDiedError):
        run_attempts([DIED] * 3, config, number=7)
    assert "restart 2 of 2." in capsys.readouterr().err


@pytest.fixture
def waits(monkeypatch):
    """Runs attempts that last so long and save so, and returns the waits between them."""

    def run(attempts, **config):
        now, waited = 0.0, []
        monkeypatch.setattr(restarts, "time", SimpleNamespace(monotonic=lambda: now))
        lives = iter(attempts)

        class Launcher:
            is_single_host = True

            def run(self, attempt, reports, stop):
                nonlocal now
                seconds, saved = next(lives)
                now += seconds
                for step in saved:
                    for one in reports:
                        one.progress(WORLD, {"facts": {"checkpoint_step": step}})
                        one.progress(WORLD, {"facts": {"gpus": 0}})
                raise DIED

        stop = StopRequest()
        monkeypatch.setattr(stop.cancelled, "wait", waited.append)
        config = RunConfig(max_restarts=len(attempts) - 1, **config)
        attempt = AttemptSpec(backend="torch", function=b"", config=config, run="r")
        with pytest.raises(WorkerDiedError):
            restarts.run_with_restarts(Launcher(), attempt, None, [Reports()], stop)
        return waited

    return run


def test_who_has_run_for_long_waits_as_for_the_first_restart(waits):
    lives = [1.0, 59.0, 3.0, 61.0, 4.0, 500.0, 61.0]
    assert waits([(life, []) for life in lives]) == [5, 10, 20, 5, 10, 5]


def test_who_saved_a_further_step_is_not_waited_for(waits, capsys):
    attempts = [
        (1.0, [5, 10]),  # the first of all
        (1.0, []),
        (1.0, [10]),  # saved again what was known
        (1.0, [7, 20]),
        (1.0, [15]),  # back at an older one, and not as far
        (61.0, [25]),
        (1.0, []),
        (1.0, []),
    ]
    assert waits(attempts) == [0, 5, 10, 0, 5, 0, 5]
    told = capsys.readouterr().err
    assert "Restarting all ranks at once: restart 1 of 7." in told
    assert "Restarting all ranks in 5 s: restart 2 of 7." in told


def test_the_first_step_may_be_0(waits):
    assert waits([(1.0, [0]), (1.0, [])]) == [0]


def test_a_thousand_fruitless_restarts_wait_a_minute_each(waits):
    assert waits([(1.0, [])] * 1100)[-1] == 60


def test_the_first_attempt_of_a_resumed_run_is_no_restart():
    started = []

    class Launcher:
        is_single_host = True

        def run(self, attempt, reports, stop):
            started.append((attempt.number, attempt.is_restart))
            if len(started) == 1:
                raise DIED
            return [Outcome(world=WORLD, status=Status.RETURNED, ended_at=0.0, payload=b"I3\n.")]

    class Resumed:
        def begin_attempt(self, number):
            pass

        def end_attempt(self, error, growth=""):
            pass

        def ticket(self, *, single_host):
            return None

    config = RunConfig(max_restarts=1, restart_backoff_seconds=0)
    attempt = AttemptSpec(backend="torch", function=b"", config=config, run="r", number=3)
    assert (
        restarts.run_with_restarts(Launcher(), attempt, Resumed(), [Reports()], StopRequest()) == 3
    )
    assert started == [(3, False), (4, True)]


def test_a_host_that_is_taken_away_costs_no_restart_as_long_as_there_is_progress(capsys):
    config = RunConfig(max_restarts=1, restart_backoff_seconds=0)
    ended_by = [preempted(at=10), preempted(at=20), preempted(at=20), preempted(at=20)]
    with pytest.raises(WorkerFailedError) as caught:
        run_attempts(list(ended_by), config)
    assert caught.value is ended_by[-1], "attempts 2 and 3 saved no further step"
    told = capsys.readouterr().err
    assert told.count("The training goes on.") == 2
    assert told.count("restart 1 of 1.") == 1


def test_without_restarts_a_host_that_is_taken_away_ends_the_run():
    ended_by = preempted(at=10)
    with pytest.raises(WorkerFailedError) as caught:
        run_attempts([ended_by], RunConfig())
    assert caught.value is ended_by


def preempted(*, at):
    error = WorkerFailedError(
        "Rank 1 raised Preempted.", **PLACE, remote_traceback="", is_preemption=True
    )
    error.__cause__ = Preempted(at, 1, "h")
    return error


def run_attempts(ended_by, config, number=0):
    class Launcher:
        is_single_host = True

        def run(self, attempt, reports, stop):
            raise ended_by.pop(0)

    attempt = AttemptSpec(backend="torch", function=b"", config=config, run="r", number=number)
    restarts.run_with_restarts(Launcher(), attempt, None, [Reports()], StopRequest())


def test_a_growth_is_no_failure_and_costs_no_restart(capsys):
    started, ended = [], []
    grew = Outcome(
        world=WORLD,
        status=Status.FAILED,
        ended_at=0.0,
        message="1 → 2 ranks: executor h came back. The training goes on from step 5.",
        is_growth=True,
    )
    returned = Outcome(world=WORLD, status=Status.RETURNED, ended_at=0.0, payload=b"I3\n.")

    class Launcher:
        is_single_host = True

        def run(self, attempt, reports, stop):
            started.append((attempt.number, attempt.is_restart))
            if len(started) == 2:
                raise DIED
            return [returned if len(started) == 4 else grew]

    class Tracked(Reports):
        def begin_attempt(self, number):
            pass

        def end_attempt(self, error, growth=""):
            ended.append((error, growth))

        def ticket(self, *, single_host):
            return None

    config = RunConfig(max_restarts=1, restart_backoff_seconds=0)
    attempt = AttemptSpec(backend="torch", function=b"", config=config, run="r")
    assert restarts.run_with_restarts(Launcher(), attempt, Tracked(), [], StopRequest()) == 3
    assert started == [(0, False), (1, True), (2, True), (3, True)]
    assert ended == [(None, grew.message), (DIED, ""), (None, grew.message), (None, "")]
    assert capsys.readouterr().err.count(f"sparkdl_runner: {grew.message}\n") == 2

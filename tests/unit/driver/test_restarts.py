from __future__ import annotations

import pytest

from sparkdl_runner import RunConfig, runner
from sparkdl_runner.driver.restarts import Restarts
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


def test_the_backoff_doubles_up_to_a_minute(capsys):
    slept = []
    restarts = Restarts(RunConfig(max_restarts=6, restart_backoff_seconds=5), slept.append)
    for _ in range(6):
        restarts.wait_or_raise(DIED)
    assert slept == [5, 10, 20, 40, 60, 60]
    assert restarts.attempt == 6
    with pytest.raises(WorkerDiedError) as caught:
        restarts.wait_or_raise(DIED)
    assert caught.value.__notes__ == ["This was attempt 6, counted from 0."]
    told = capsys.readouterr().err
    assert "Rank 1 died. Restarting all ranks in 5 s: restart 1 of 6." in told


@pytest.mark.parametrize(
    "error", [DIED, HUNG, LOST_PEERS, NOT_SAVED, RunnerError("Spark ended the run.")]
)
def test_what_another_attempt_may_survive_is_tried_again(error):
    restarts = Restarts(RunConfig(max_restarts=1), lambda seconds: None)
    restarts.wait_or_raise(error)
    assert restarts.attempt == 1


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
    with pytest.raises(type(error)):
        Restarts(RunConfig(max_restarts=9), lambda seconds: None).wait_or_raise(error)


def test_errors_of_the_function_are_tried_again_if_asked_for():
    config = RunConfig(max_restarts=1, restart_user_errors=True)
    Restarts(config, lambda seconds: None).wait_or_raise(RAISED)


def test_without_restarts_the_error_is_raised_as_it_is():
    with pytest.raises(WorkerDiedError) as caught:
        Restarts(RunConfig()).wait_or_raise(DIED)
    assert caught.value is DIED


def test_a_resumed_run_has_all_its_restarts_and_waits_as_a_new_one_does(capsys):
    slept = []
    config = RunConfig(max_restarts=2, restart_backoff_seconds=5)
    restarts = Restarts(config, slept.append, first_attempt=7)
    for _ in range(2):
        restarts.wait_or_raise(DIED)
    assert slept == [5, 10]
    assert (restarts.attempt, restarts.count) == (9, 2)
    assert "restart 2 of 2." in capsys.readouterr().err
    with pytest.raises(WorkerDiedError):
        restarts.wait_or_raise(DIED)


def test_the_first_attempt_of_a_resumed_run_is_no_restart():
    """Only a restart makes do with ``min_num_proc`` ranks."""
    started = []

    def attempt(number, is_restart, ticket):
        started.append((number, is_restart))
        if len(started) == 1:
            raise DIED
        return "done"

    class Resumed:
        first_attempt = 3

        def begin_attempt(self, number):
            pass

        def end_attempt(self, error):
            pass

        def ticket(self, *, single_host):
            return None

    config = RunConfig(max_restarts=1, restart_backoff_seconds=0)
    ranks = runner.DistributedRunner(num_proc=-2, config=config)
    gang = runner._Gang(attempt=attempt, is_single_host=True, application_id=None)
    assert ranks._run_attempts(gang, Resumed()) == "done"
    assert started == [(3, False), (4, True)]

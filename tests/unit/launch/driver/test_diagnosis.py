from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdl_runner.errors import (
    NotPicklableError,
    ResultTooLargeError,
    WorkerDiedError,
    WorkerFailedError,
)
from sparkdl_runner.launch.driver.diagnosis import root_cause, to_error, with_failures
from sparkdl_runner.launch.wire import function
from sparkdl_runner.launch.wire.failure_report import UnheardFailureError
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, assign_ranks

WORLDS = assign_ranks(
    [
        Peer(partition=i, host=f"h{i}", host_key=f"k{i}", address="127.0.0.1", interface="lo")
        for i in range(3)
    ],
    backend="torch",
    attempt=4,
)


def failed(rank, ended_at, name="ValueError", *, lost_peers=False, payload=b""):
    return Outcome(
        world=WORLDS[rank],
        status=Status.FAILED,
        ended_at=ended_at,
        exception=name,
        message="bad",
        traceback="Traceback (most recent call last):\n  somewhere",
        is_communication_error=lost_peers,
        output_tail=("last words",),
        payload=payload,
    )


def ended(rank, status, ended_at=0.0, exit_code=0):
    return Outcome(world=WORLDS[rank], status=status, ended_at=ended_at, exit_code=exit_code)


def test_the_first_failure_that_is_no_communication_error_is_the_cause_whatever_clocks_say():
    lost, cause, later = failed(0, 1.0, lost_peers=True), failed(1, 9.0), failed(2, 3.0)
    assert root_cause([lost, cause, later]) is cause
    told_by_agents = [lost, replace(later, payload=b"x"), replace(cause, payload=b"x")]
    assert root_cause(with_failures(told_by_agents, [lost, cause, later])).world.rank == 1


def test_a_native_library_that_gives_up_is_no_cause_beside_a_killed_rank():
    aborted = ended(0, Status.DIED, exit_code=-6)
    killed = ended(1, Status.DIED, exit_code=-9)
    assert root_cause([aborted, killed]) is killed
    assert root_cause([aborted, failed(2, 0.0, lost_peers=True)]) is aborted
    waits = replace(ended(1, Status.WAITING), is_communication_error=True)
    assert root_cause([aborted, waits]) is waits


def test_a_death_is_a_cause_and_being_stopped_is_none():
    death = ended(1, Status.DIED, 2.0, exit_code=-9)
    stopped = ended(2, Status.STOPPED, 0.5)
    assert root_cause([failed(0, 1.0, lost_peers=True), death, stopped]) is death


def test_with_communication_errors_only_the_first_is_raised():
    first = failed(2, 3.0, lost_peers=True)
    assert root_cause([first, failed(0, 2.0, lost_peers=True)]) is first


def test_ranks_that_returned_while_others_waited_for_them_are_named():
    lost = failed(1, 1.0, lost_peers=True)
    ends = [ended(0, Status.RETURNED), ended(2, Status.RETURNED)]
    assert "Ranks 0, 2 have returned, so that" in str(to_error(lost, [lost, *ends]))
    assert "Rank 2 has returned, so that" in str(to_error(lost, [lost, ends[1]]))
    assert "returned" not in str(to_error(lost, [lost]))
    assert "returned" not in str(to_error(failed(1, 1.0), ends))


def gang(size):
    """So many ranks, eight a host."""
    peers = [
        Peer(
            partition=rank,
            host=f"h{rank // 8}",
            host_key=f"k{rank // 8}",
            address="127.0.0.1",
            interface="lo",
        )
        for rank in range(size)
    ]
    return assign_ranks(peers, backend="torch", attempt=0)


def test_ranks_that_ended_alike_are_one_line_of_the_error():
    worlds = gang(1024)
    ends = [
        replace(failed(0, float(rank), lost_peers=rank != 512), world=worlds[rank])
        for rank in range(1024)
    ]
    told = str(to_error(root_cause(ends), ends))
    assert told.startswith("Rank 512 of 1024 on host h64 raised ValueError: bad")
    line = "1,023 ranks (0 to 511, 513 to 1023) on 128 hosts each lost its peers (ValueError)"
    assert told.endswith(f"As a consequence:\n  {line}")
    assert len(told) < 500


def test_an_error_does_not_grow_with_ranks_that_each_say_much():
    worlds = gang(64)
    ends = [
        replace(failed(0, float(rank)), world=worlds[rank], message=f"rank {rank} " + "x" * 16_000)
        for rank in range(64)
    ]
    error = to_error(root_cause(ends), ends)
    told = str(error).splitlines()
    assert told[0].endswith(" … (6,007 characters more)")
    assert told[-1] == "  and 53 more in other words, which are in the logs of these ranks"
    assert sum("raised ValueError: rank" in line for line in told) == 11
    assert len(str(error)) < 25_000


def test_a_run_that_returned_has_no_cause():
    assert root_cause([ended(0, Status.RETURNED), ended(1, Status.RETURNED)]) is None


def test_a_failed_function_is_told_with_rank_host_traceback_output_and_consequences():
    cause = failed(1, 1.0, payload=function.pack_exception(ValueError("bad")))
    error = to_error(cause, [failed(0, 2.0, "HorovodInternalError", lost_peers=True), cause])
    assert isinstance(error, WorkerFailedError)
    assert (error.rank, error.host, error.attempt) == (1, "h1", 4)
    assert str(error).startswith("Rank 1 of 3 on host h1 raised ValueError: bad\n")
    assert "    somewhere" in str(error)
    assert "  last words" in str(error)
    assert "rank 0 on host h0 lost its peers (HorovodInternalError)" in str(error)
    assert error.remote_traceback == cause.traceback
    assert error.output_tail == ("last words",)
    assert isinstance(error.__cause__, ValueError)


def test_only_an_exception_that_says_so_is_worth_a_restart_of_its_own():
    plain = failed(1, 0.0)
    assert not to_error(plain, [plain]).is_worth_a_restart
    worth = replace(plain, is_worth_a_restart=True)
    assert to_error(worth, [worth]).is_worth_a_restart


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (-9, "was ended by SIGKILL. That is what the kernel does when memory runs out"),
        (-11, "was ended by SIGSEGV"),
        (3, "exited with code 3 before the function returned"),
        (-250, "was ended by signal 250"),
    ],
)
def test_a_death_says_how(exit_code, words):
    error = to_error(ended(2, Status.DIED, exit_code=exit_code), [])
    assert isinstance(error, WorkerDiedError)
    assert words in str(error)
    assert error.rank == 2


@pytest.mark.parametrize("kind", [NotPicklableError, ResultTooLargeError])
def test_a_result_that_cannot_travel_is_its_own_kind_of_error(kind):
    message = "The value that rank 0 …"
    cause = replace(failed(0, 1.0), message=message, refused_result=kind.__name__)
    error = to_error(cause, [cause])
    assert type(error) is kind
    assert str(error) == message


def test_an_outcome_survives_sparks_error_text():
    cause = failed(1, 1.0, payload=b"stays behind")
    text = str(UnheardFailureError.of(cause))
    assert "\n" not in text
    assert UnheardFailureError.outcome(text) == replace(cause, payload=b"")


def test_what_the_driver_saw_of_a_rank_counts_only_where_the_rank_was_stopped_for_it():
    stopped = replace(ended(0, Status.STOPPED), output_tail=("last words",), log_path="/log")
    raised, returned = failed(1, 2.0), ended(2, Status.RETURNED)
    hung = [ended(rank, Status.HUNG) for rank in (0, 1)]
    found = with_failures([stopped, raised, returned], [*hung, ended(2, Status.DIED)])
    assert found[0] == replace(hung[0], output_tail=("last words",), log_path="/log")
    assert {one.status for one in found[1:3]} == {Status.HUNG, raised.status}
    assert found[3:] == [returned]


def test_an_end_that_nobody_saw_is_told_as_that():
    lost = Outcome(world=WORLDS[0], status=Status.DIED, ended_at=1.0)
    assert str(to_error(lost, [lost])) == "Rank 0 of 3 on host h0 ended without a result."


def test_of_ranks_that_raise_one_error_the_one_that_raises_it_elsewhere_is_the_cause():
    at_one_place = [failed(0, 1.0), failed(1, 2.0)]
    odd = replace(failed(2, 3.0), traceback="Traceback (most recent call last):\n  elsewhere")
    assert root_cause([*at_one_place, odd]) is odd
    assert root_cause([at_one_place[0], odd]) is at_one_place[0], "one of two: nobody knows which"
    other = replace(odd, message="another error")
    assert root_cause([*at_one_place, other]) is at_one_place[0]
    waits = [replace(one, status=Status.WAITING) for one in (*at_one_place, odd)]
    assert root_cause(waits) is waits[0]

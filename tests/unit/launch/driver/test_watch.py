"""Which ranks are to blame for a hang or a loss, by a clock that the test sets."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from sparkdl_runner.errors import WorkerHungError
from sparkdl_runner.launch.backends import get_backend, torch_store
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.driver.deadlines import is_silent, with_reason
from sparkdl_runner.launch.driver.diagnosis import root_cause, to_error
from sparkdl_runner.launch.driver.watch import Watch
from sparkdl_runner.launch.wire.messages import Stacks, VitalSigns
from sparkdl_runner.launch.wire.outcome import Status
from sparkdl_runner.rank.world import Peer, assign_ranks

CONFIG = RunConfig(
    start_timeout_seconds=20,
    rendezvous_timeout_seconds=30,
    hang_timeout_seconds=60,
    heartbeat_timeout_seconds=10,
)
WORLDS = list(
    assign_ranks(
        [
            Peer(
                partition=i,
                host=f"host-{i}",
                host_key=f"k{i}",
                address=f"10.0.0.{i}",
                interface="eth0",
            )
            for i in range(3)
        ],
        backend="horovod",
    ).values()
)
WAITS = 'File "/x/horovod/torch/mpi_ops.py", line 1 in synchronize'
SLEEPS = 'File "train.py", line 9 in load'


class ThreeRanks:
    """A watch over three ranks, and a clock."""

    def __init__(self, config=CONFIG, stacks=None, backend="horovod"):
        self.seconds = 1000.0
        self.stacks = stacks or {}
        self.watch = Watch(
            config=config,
            backend=get_backend(backend),
            num_proc=3,
            ask_stacks=lambda: {
                rank: one if isinstance(one, Stacks) else Stacks(one, [])
                for rank, one in self.stacks.items()
            },
            on_verdict=lambda verdict: None,
            now=lambda: self.seconds,
        )

    def begin(self, ranks=(0, 1, 2), *, placed=True):
        for rank in ranks:
            self.watch.present(rank, f"host-{rank}")
            if placed:
                self.watch.placed(rank, WORLDS[rank])

    def look(self, rank, *, silent=0.0, idle=0.0, joining=0.0, state="S", **more):
        signs = VitalSigns(
            silent_seconds=silent,
            idle_seconds=idle,
            joining_seconds=joining,
            state=state,
            **{"has_begun": True, **more},
        )
        self.watch.vital_signs(WORLDS[rank], signs)

    def blamed(self):
        verdict = self.watch.check()
        return None if verdict is None else [one.world.rank for one in verdict.failures]


def test_all_is_well():
    ranks = ThreeRanks()
    assert ranks.watch.check() is None
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=59)
    assert ranks.watch.check() is None


def test_agents_that_do_not_come_are_missed_after_the_start_timeout():
    ranks = ThreeRanks()
    ranks.begin([0, 2], placed=False)
    ranks.seconds += 19
    assert ranks.watch.check() is None
    ranks.seconds += 2
    problem = ranks.watch.check().launch_problem
    assert "2 of 3 ranks have started on host-0, host-2" in problem
    assert "start_timeout_seconds=20" in problem


def test_one_that_cannot_reach_the_driver_is_no_reason_once_the_others_have_met_it():
    ranks = ThreeRanks()
    ranks.begin([0])
    ranks.seconds += 30
    ranks.watch.heard(0)
    assert ranks.watch.check() is None


def test_all_idle_is_a_hang_and_who_waits_is_not_its_cause():
    ranks = ThreeRanks(stacks={0: WAITS, 1: SLEEPS, 2: WAITS})
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=61)
    failures = ranks.watch.check().failures
    assert {one.status for one in failures} == {Status.HUNG}
    assert [one.is_communication_error for one in failures] == [True, False, True]
    assert "no progress for 61 s (hang_timeout_seconds=60)" in failures[1].message
    assert failures[1].traceback == SLEEPS


@pytest.mark.parametrize(
    ("stacks", "told"),
    [
        (
            {0: Stacks(WAITS, ["10.0.0.2", "10.9.9.9"]), 1: WAITS, 2: Stacks(WAITS, ["10.0.0.0"])},
            "not acknowledged between host-0 (10.0.0.0) and host-2 (10.0.0.2): look at",
        ),
        (
            {0: WAITS, 1: WAITS, 2: WAITS},
            "at the network between host-0 (10.0.0.0), host-1 (10.0.0.1) and host-2 (10.0.0.2)",
        ),
        (
            {0: WAITS, 1: WAITS, 2: f"{SLEEPS}\n{WAITS}"},
            "They wait at 2 places, and rank 2 not where most do: ranks that call different",
        ),
        (
            {0: WAITS, 1: f"here\n{WAITS}", 2: f"{SLEEPS}\n{WAITS}"},
            "They wait at 3 places: ranks that call different collective operations",
        ),
    ],
)
def test_where_all_wait_none_is_blamed_and_the_error_says_where_to_look(stacks, told):
    ranks = ThreeRanks(stacks=stacks)
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=61)
    failures = list(ranks.watch.check().failures)
    assert {one.status for one in failures} == {Status.WAITING}
    error = to_error(root_cause(failures), failures)
    assert isinstance(error, WorkerHungError)
    assert error.rank == (2 if "not where most do" in told else 0)
    assert str(error).startswith("All 3 ranks wait for one another, and none is late: each has ")
    assert "no progress for 61 s (hang_timeout_seconds=60)" in str(error)
    assert told in str(error)
    assert "As a consequence" not in str(error)
    assert ("Stacks of 3 ranks (0 to 2) on 3 hosts:" in str(error)) == (SLEEPS not in str(error))


@pytest.mark.parametrize("place", [SLEEPS, WAITS])
def test_the_rank_that_has_not_called_what_the_others_wait_in_is_the_cause(place):
    """Wherever it is, and wherever the others are: on a GPU they may wait in any line."""
    call = {"call": "all_reduce(Float [9])", "number": 7, "where": "world", "ranks": None}
    answers = {
        rank: Stacks(place, [], {"calls": [{**call, "done": False}] if rank != 1 else []})
        for rank in range(3)
    }
    ranks = ThreeRanks(stacks=answers)
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=61)
    failures = list(ranks.watch.check().failures)
    error = to_error(root_cause(failures), failures)
    assert error.rank == 1
    awaited = "Ranks 0, 2 wait in all_reduce(Float [9]) number 7 of world, which rank 1 has not"
    assert awaited in str(error)
    assert str(error).startswith("All 3 ranks wait" if place == WAITS else "Rank 1 of 3 on host")
    in_it = "It waits in all_reduce(Float [9]) number 7 of world."
    assert [in_it in one.traceback for one in failures] == [False, True, True]


@pytest.mark.parametrize("place", [SLEEPS, WAITS])
def test_what_nccl_says_of_all_ranks_is_in_the_error_whoever_is_the_cause(place):
    said = Stacks(WAITS, [], nccl="rank 1 did not answer")
    ranks = ThreeRanks(stacks={0: said, 1: place, 2: WAITS})
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=61)
    failures = list(ranks.watch.check().failures)
    error = to_error(root_cause(failures), failures)
    assert error.rank == (1 if place == SLEEPS else 0)
    indent = "  " if place == SLEEPS else ""
    assert str(error).count(f"ncclras, of all ranks:\n{indent}rank 1 did not answer\n") == 1
    if place == WAITS:
        assert "Stacks of 3 ranks (0 to 2)" in str(error), "they are alike"


def test_the_last_rank_that_runs_is_no_crowd():
    ranks = ThreeRanks(stacks={0: WAITS})
    ranks.begin()
    ranks.watch.ended(WORLDS[1])
    ranks.watch.ended(WORLDS[2])
    ranks.seconds += 61
    ranks.look(0, idle=61)
    (failure,) = ranks.watch.check().failures
    assert failure.message.startswith("Rank 0 is the last that runs, and waits for others: it has")


@pytest.mark.parametrize("limit", [1800, None])
def test_ranks_that_wait_for_returned_ones_are_told_of_long_before_the_deadline(limit):
    ranks = ThreeRanks(replace(CONFIG, hang_timeout_seconds=limit), {0: SLEEPS, 1: WAITS})
    ranks.begin()
    ranks.look(2, has_returned=True)
    ranks.seconds += 61

    def look():
        for rank in range(2):
            ranks.look(rank, idle=61)
        return ranks.watch.check(), ranks.watch.left_waiting()

    assert look() == (None, ""), "rank 0 reads, say: it may come"
    ranks.stacks[0] = WAITS
    assert look() == (None, ""), "its stack was asked for just now"
    ranks.seconds += 60
    verdict, told = look()
    assert verdict is None
    assert told.startswith(
        "2 ranks (0 to 1) on 2 hosts wait for other ranks, without progress for 60 s. Rank 2 has "
        "returned, so that there was nobody to communicate with"
    )
    assert f"hang_timeout_seconds={limit}" in told
    assert told.count(WAITS) == 1
    ranks.seconds += 600
    assert look() == (None, ""), "once"


def test_while_no_rank_has_returned_or_one_works_nobody_is_told_of_as_waiting_in_vain():
    ranks = ThreeRanks(replace(CONFIG, hang_timeout_seconds=1800), dict.fromkeys(range(3), WAITS))
    ranks.begin()
    ranks.seconds += 90
    for rank in range(3):
        ranks.look(rank, idle=90)
    assert not ranks.watch.left_waiting()
    ranks.watch.ended(WORLDS[2])
    ranks.seconds += 61
    ranks.look(0, idle=151)
    ranks.look(1, idle=1)
    assert not ranks.watch.left_waiting()


def test_who_waits_inside_of_backward_is_not_the_cause():
    backward = 'File "/x/torch/autograd/graph.py", line 1 in _engine_run_backward'
    ranks = ThreeRanks(stacks={0: backward, 1: SLEEPS, 2: backward}, backend="torch")
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=61)
    failures = ranks.watch.check().failures
    assert [one.is_communication_error for one in failures] == [True, False, True]


def test_a_rank_0_that_stays_for_the_others_is_not_the_cause():
    stays = f'File "{torch_store.__file__}", line 1 in stay'
    ranks = ThreeRanks(stacks={0: stays, 1: SLEEPS, 2: SLEEPS}, backend="torch")
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=61)
    failures = ranks.watch.check().failures
    assert [one.world.rank for one in failures if not one.is_communication_error] == [1, 2]


def test_a_host_that_is_not_heard_is_lost_however_short_the_deadline_for_hangs():
    config = replace(CONFIG, hang_timeout_seconds=8, heartbeat_timeout_seconds=10)
    ranks = ThreeRanks(config, stacks={0: WAITS, 1: WAITS})
    ranks.begin()
    for _ in range(11):
        for rank in range(3 if ranks.seconds == 1000 else 2):
            ranks.look(rank, idle=ranks.seconds - 1000, silent=0.5)
        assert ranks.watch.check() is None
        ranks.seconds += 1
    (lost,) = ranks.watch.check().failures
    assert (lost.world.rank, lost.status) == (2, Status.LOST)


def test_one_that_works_while_the_others_wait_is_no_hang():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.look(0, idle=1)
    ranks.look(1, idle=1000)
    ranks.look(2, idle=1000)
    assert ranks.watch.check() is None


def test_one_that_has_ended_is_not_waited_for():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.watch.ended(WORLDS[0])
    ranks.seconds += 61
    ranks.look(1, idle=61)
    ranks.look(2, idle=61)
    assert ranks.blamed() == [1, 2]


def test_one_that_has_returned_is_no_hang_however_long_its_process_takes_to_end():
    ranks = ThreeRanks()
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, silent=61, idle=61, state="Z", has_returned=True)
    assert ranks.blamed() is None


def test_those_that_waited_for_one_have_the_whole_time_from_its_return():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.look(0, has_returned=True)
    for seconds, blamed in ((59, None), (2, [1, 2])):
        ranks.seconds += seconds
        ranks.look(0, silent=90, idle=90, has_returned=True)  # Its process does not end.
        ranks.look(1, idle=120)
        ranks.look(2, idle=120)
        assert ranks.blamed() == blamed


def test_those_that_waited_for_one_have_the_whole_time_from_its_end():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.watch.ended(WORLDS[0])
    for seconds, blamed in ((0, None), (59, None), (2, [1, 2])):
        ranks.seconds += seconds
        ranks.look(1, idle=1000)
        ranks.look(2, idle=1000)
        assert ranks.blamed() == blamed


def test_a_process_without_a_sign_of_life_is_named_with_its_state():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.look(0, idle=61)
    ranks.look(1, idle=61, silent=61, state="T")
    ranks.look(2)
    failures = ranks.watch.check().failures
    assert [one.world.rank for one in failures] == [1]
    assert "no sign of life for 61 s" in failures[0].message
    assert "is stopped (SIGSTOP)" in failures[0].message


def test_the_age_of_the_last_look_counts():
    ranks = ThreeRanks()
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=55)
    ranks.seconds += 6
    for rank in range(3):
        ranks.watch.heard(rank)
    assert ranks.blamed() == [0, 1, 2]


def test_without_a_hang_timeout_nothing_is_a_hang():
    ranks = ThreeRanks(RunConfig(hang_timeout_seconds=None))
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=1e9, silent=1e9)
    assert ranks.watch.check() is None


@pytest.mark.parametrize(
    ("joining", "blamed", "sentence"),
    [
        ((31, 0, 31), [1], "has not joined its peers, who have waited for it for 31 s"),
        ((31, 31, 31), [0, 1, 2], "could not join its peers, though all of them try"),
    ],
)
def test_a_rendezvous_that_takes_too_long(joining, blamed, sentence):
    ranks = ThreeRanks()
    ranks.begin()
    for rank, seconds in enumerate(joining):
        ranks.look(rank, joining=seconds)
    verdict = ranks.watch.check()
    assert [one.world.rank for one in verdict.failures] == blamed
    assert sentence in verdict.failures[0].message


def test_one_whose_agent_never_looked_at_it_is_the_one_that_its_peers_wait_for():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.look(0, joining=31)
    ranks.look(1, joining=31)
    assert ranks.blamed() == [2]
    assert "who have waited for it for 31 s" in ranks.watch.check().failures[0].message


class Pauses(threading.Event):
    """Lets the watch look after so many seconds each time, of the ranks' clock, and then ends."""

    def __init__(self, ranks, seconds):
        super().__init__()
        self.ranks, self.left = ranks, list(seconds)

    def wait(self, timeout=None):
        if not self.left:
            return True
        self.ranks.seconds += self.left.pop(0)
        return False

    def set(self):
        """To close the watch is to wait for its last look."""


def verdicts_after(ranks, *pauses):
    """What the watch's own thread finds, looking after each of these pauses."""
    found = []
    ranks.watch.on_verdict = found.append
    ranks.watch._closed = Pauses(ranks, pauses)
    ranks.watch.start()
    ranks.watch.close()
    return found


def test_a_rank_that_still_imports_is_judged_by_the_start_deadline_alone():
    ranks = ThreeRanks(replace(CONFIG, start_timeout_seconds=200))
    ranks.begin()

    def look(seconds, *, begun):
        ranks.seconds = 1000.0 + seconds
        ranks.look(0, joining=seconds - 5.0)
        ranks.look(1, joining=seconds - 5.0)
        ranks.look(2, silent=seconds, idle=seconds, has_begun=begun)
        return ranks.blamed()

    # On a starved machine it hardly computes, for longer than peers may wait, or a rank may hang.
    assert look(100, begun=False) is None
    assert look(199, begun=False) is None
    assert look(201, begun=False) == [2]
    sentence = ranks.watch.check().failures[0].message
    assert sentence.startswith(
        "has not begun the function, for which it first imports torch, horovod.torch, within "
        "start_timeout_seconds=200. Its host is short of processor time"
    )

    ranks = ThreeRanks(replace(CONFIG, start_timeout_seconds=200, hang_timeout_seconds=None))
    ranks.begin()
    assert look(150, begun=False) is None
    # Once it has begun, its peers wait for it as they would have from there.
    assert look(151, begun=True) is None
    assert look(180, begun=True) is None
    assert look(181, begun=True) == [2]
    assert "who have waited for it for 31 s" in ranks.watch.check().failures[0].message


def test_a_driver_that_was_paused_has_heard_nobody_and_blames_nobody():
    ranks = ThreeRanks()
    ranks.begin()
    for rank in range(3):
        ranks.look(rank, idle=50, silent=50)
    ranks.watch.gone(1)
    assert verdicts_after(ranks, 3600, 0.25, 1800, 0.25) == []
    # Of what comes after the pause, nothing is forgiven.
    (verdict,) = verdicts_after(ranks, 2.5)
    assert [one.world.rank for one in verdict.failures] == [1]


def test_the_imports_of_a_rank_are_not_late_by_what_a_driver_was_paused():
    ranks = ThreeRanks(replace(CONFIG, heartbeat_timeout_seconds=1000))
    ranks.begin()
    ranks.look(2, has_begun=False)
    assert verdicts_after(ranks, 3600, 4, 4, 4, 4) == []
    (verdict,) = verdicts_after(ranks, 4, 4)
    assert [one.world.rank for one in verdict.failures] == [2]


def test_to_ask_for_stacks_for_long_is_no_pause_of_the_driver():
    ranks = ThreeRanks()
    ranks.begin()

    def ask():
        ranks.seconds += 8
        return ""

    ranks.watch.left_waiting = ask
    ranks.watch.gone(1)
    (verdict,) = verdicts_after(ranks, 0.25, 0.25)
    assert [one.world.rank for one in verdict.failures] == [1]


def test_a_watch_that_looks_often_forgives_nothing():
    ranks = ThreeRanks()
    ranks.begin()
    assert verdicts_after(ranks, 4, 4) == []
    (verdict,) = verdicts_after(ranks, 4)
    assert [one.status for one in verdict.failures] == [Status.LOST] * 3


def test_while_nobody_has_come_the_slots_are_looked_after():
    ranks = ThreeRanks()
    ranks.watch.lost_slots = lambda there, _: None if there else "2 of 3 slots are left"
    assert ranks.watch.check().launch_problem == "2 of 3 slots are left"
    ranks.begin([0], placed=False)
    assert ranks.watch.check() is None


def test_one_that_never_reached_the_driver_may_be_the_one_that_works():
    ranks = ThreeRanks()
    ranks.begin([1, 2])
    ranks.look(1, idle=1000)
    ranks.look(2, idle=1000)
    assert ranks.watch.check() is None


def test_an_agent_that_is_not_heard_is_lost():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.seconds += 9
    ranks.watch.heard(0)
    ranks.watch.heard(2)
    assert ranks.watch.check() is None
    ranks.seconds += 2
    failure = ranks.watch.check().failures[0]
    assert (failure.world.rank, failure.status) == (1, Status.LOST)
    assert "not been heard of for 11 s (heartbeat_timeout_seconds=10)" in failure.message


def test_one_that_has_returned_is_lost_only_once_no_other_is_at_work():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.look(2, has_returned=True)
    ranks.watch.gone(2)
    ranks.look(1, has_returned=True)
    for _ in range(4):
        ranks.seconds += 9
        ranks.look(0)
        assert ranks.blamed() is None
    ranks.look(0, has_returned=True)
    first, second = ranks.watch.check().failures
    assert (first.world.rank, second.world.rank) == (1, 2)
    assert first.message.startswith("had returned, and has not been heard of for 36 s")
    assert second.message.startswith("had returned, and is lost: its Spark task ended without")
    assert (is_silent(first), is_silent(second)) == (True, False)
    assert with_reason(second, "executor 1 exited").message == (
        "had returned, and is lost: executor 1 exited. Spark then ended all ranks, before rank 0's "
        "value had come."
    )


def test_an_agent_whose_connection_ends_is_lost_unless_it_comes_again_or_has_ended():
    ranks = ThreeRanks()
    ranks.begin()
    for rank in range(3):
        ranks.watch.gone(rank)
    ranks.watch.present(0, "host-0")
    ranks.watch.ended(WORLDS[1])
    assert ranks.watch.check() is None
    ranks.seconds += 2.6
    failures = ranks.watch.check().failures
    assert [one.world.rank for one in failures] == [2]
    assert "its Spark task ended without a word" in failures[0].message


def test_who_went_without_a_word_is_missing_at_once():
    ranks = ThreeRanks()
    ranks.begin()
    ranks.watch.present(3, "host-3")
    for rank in (0, 2, 3):
        ranks.watch.gone(rank)  # 3 never learnt its place: it is nobody's rank
    ranks.watch.ended(WORLDS[1])
    ranks.watch.gone(1)
    assert [outcome.world.rank for outcome in ranks.watch.missing()] == [0, 2]
    ranks.watch.present(2, "host-2")
    assert [outcome.world.rank for outcome in ranks.watch.missing()] == [0]
    assert ranks.watch.running() == {0, 2}

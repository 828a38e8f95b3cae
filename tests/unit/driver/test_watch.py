"""Who is to blame for a gang that hangs, by a clock that the test sets."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from sparkdl_runner.backends import get_backend, torch_store
from sparkdl_runner.config import RunConfig
from sparkdl_runner.driver.watch import Watch
from sparkdl_runner.wire.outcome import HUNG, LOST
from sparkdl_runner.wire.vital_signs import VitalSigns
from sparkdl_runner.world import Peer, assign_ranks

CONFIG = RunConfig(
    start_timeout_seconds=20,
    rendezvous_timeout_seconds=30,
    hang_timeout_seconds=60,
    heartbeat_timeout_seconds=10,
)
WORLDS = list(
    assign_ranks(
        [
            Peer(partition=i, host=f"host-{i}", host_key=f"k{i}", address="::1", interface="lo")
            for i in range(3)
        ],
        backend="horovod",
    ).values()
)
WAITS = 'File "/x/horovod/torch/mpi_ops.py", line 1 in synchronize'
SLEEPS = 'File "train.py", line 9 in load'


class Gang:
    """Three ranks and a clock."""

    def __init__(self, config=CONFIG, stacks=None, backend="horovod"):
        self.seconds = 1000.0
        self.stacks = stacks or {}
        self.watch = Watch(
            config=config,
            backend=get_backend(backend),
            num_proc=3,
            ask_stacks=lambda: self.stacks,
            on_verdict=lambda verdict: None,
            now=lambda: self.seconds,
        )

    def begin(self, ranks=(0, 1, 2), *, placed=True):
        for rank in ranks:
            self.watch.present(rank, f"host-{rank}")
            if placed:
                self.watch.placed(rank, WORLDS[rank])

    def look(self, rank, *, silent=0.0, idle=0.0, joining=0.0, state="S", has_begun=True):
        signs = VitalSigns(
            silent_seconds=silent,
            idle_seconds=idle,
            joining_seconds=joining,
            state=state,
            has_begun=has_begun,
        )
        self.watch.vital_signs(WORLDS[rank], signs)

    def ranks(self):
        verdict = self.watch.check()
        return None if verdict is None else [one.world.rank for one in verdict.failures]


def test_all_is_well():
    gang = Gang()
    assert gang.watch.check() is None
    gang.begin()
    for rank in range(3):
        gang.look(rank, idle=59)
    assert gang.watch.check() is None


def test_agents_that_do_not_come_are_missed_after_the_start_timeout():
    gang = Gang()
    gang.begin([0, 2], placed=False)
    gang.seconds += 19
    assert gang.watch.check() is None
    gang.seconds += 2
    problem = gang.watch.check().launch_problem
    assert "2 of 3 ranks have started on host-0, host-2" in problem
    assert "start_timeout_seconds=20" in problem


def test_one_that_cannot_reach_the_driver_is_no_reason_once_the_others_have_met_it():
    gang = Gang()
    gang.begin([0])
    gang.seconds += 30
    gang.watch.heard(0)
    assert gang.watch.check() is None


def test_all_idle_is_a_hang_and_who_waits_is_not_its_cause():
    gang = Gang(stacks={0: WAITS, 1: SLEEPS, 2: WAITS})
    gang.begin()
    for rank in range(3):
        gang.look(rank, idle=61)
    failures = gang.watch.check().failures
    assert {one.status for one in failures} == {HUNG}
    assert [one.is_communication_error for one in failures] == [True, False, True]
    assert "no progress for 61 s (hang_timeout_seconds=60)" in failures[1].message
    assert failures[1].traceback == SLEEPS


def test_who_waits_inside_of_backward_is_not_the_cause():
    backward = 'File "/x/torch/autograd/graph.py", line 1 in _engine_run_backward'
    gang = Gang(stacks={0: backward, 1: SLEEPS, 2: backward}, backend="torch")
    gang.begin()
    for rank in range(3):
        gang.look(rank, idle=61)
    failures = gang.watch.check().failures
    assert [one.is_communication_error for one in failures] == [True, False, True]


def test_a_rank_0_that_stays_for_the_others_is_not_the_cause():
    stays = f'File "{torch_store.__file__}", line 1 in stay'
    gang = Gang(stacks={0: stays, 1: SLEEPS, 2: SLEEPS}, backend="torch")
    gang.begin()
    for rank in range(3):
        gang.look(rank, idle=61)
    failures = gang.watch.check().failures
    assert [one.world.rank for one in failures if not one.is_communication_error] == [1, 2]


def test_one_that_works_while_the_others_wait_is_no_hang():
    gang = Gang()
    gang.begin()
    gang.look(0, idle=1)
    gang.look(1, idle=1000)
    gang.look(2, idle=1000)
    assert gang.watch.check() is None


def test_one_that_has_ended_is_not_waited_for():
    gang = Gang()
    gang.begin()
    gang.watch.ended(WORLDS[0])
    gang.look(1, idle=61)
    gang.look(2, idle=61)
    assert gang.ranks() == [1, 2]


def test_a_process_without_a_sign_of_life_is_named_with_its_state():
    gang = Gang()
    gang.begin()
    gang.look(0, idle=61)
    gang.look(1, idle=61, silent=61, state="T")
    gang.look(2)
    failures = gang.watch.check().failures
    assert [one.world.rank for one in failures] == [1]
    assert "no sign of life for 61 s" in failures[0].message
    assert "is stopped (SIGSTOP)" in failures[0].message


def test_the_age_of_the_last_look_counts():
    gang = Gang()
    gang.begin()
    for rank in range(3):
        gang.look(rank, idle=55)
    gang.seconds += 6
    assert gang.ranks() == [0, 1, 2]


def test_without_a_hang_timeout_nothing_is_a_hang():
    gang = Gang(RunConfig(hang_timeout_seconds=None))
    gang.begin()
    for rank in range(3):
        gang.look(rank, idle=1e9, silent=1e9)
    assert gang.watch.check() is None


@pytest.mark.parametrize(
    ("joining", "blamed", "sentence"),
    [
        ((31, 0, 31), [1], "has not joined its peers, who have waited for it for 31 s"),
        ((31, 31, 31), [0, 1, 2], "could not join its peers, though all of them try"),
    ],
)
def test_a_rendezvous_that_takes_too_long(joining, blamed, sentence):
    gang = Gang()
    gang.begin()
    for rank, seconds in enumerate(joining):
        gang.look(rank, joining=seconds)
    verdict = gang.watch.check()
    assert [one.world.rank for one in verdict.failures] == blamed
    assert sentence in verdict.failures[0].message


class Pauses(threading.Event):
    """Lets the watch look after so many seconds each time, of the gang's clock, and then ends."""

    def __init__(self, gang, seconds):
        super().__init__()
        self.gang, self.left = gang, list(seconds)

    def wait(self, timeout=None):
        if not self.left:
            return True
        self.gang.seconds += self.left.pop(0)
        return False

    def set(self):
        """To close the watch is to wait for its last look."""


def verdicts_after(gang, *pauses):
    """What the watch's own thread finds, looking after each of these pauses."""
    found = []
    gang.watch.on_verdict = found.append
    gang.watch._closed = Pauses(gang, pauses)
    gang.watch.start()
    gang.watch.close()
    return found


def test_a_rank_that_still_imports_is_judged_by_the_start_deadline_alone():
    gang = Gang(replace(CONFIG, start_timeout_seconds=200))
    gang.begin()

    def look(seconds, *, begun):
        gang.seconds = 1000.0 + seconds
        gang.look(0, joining=seconds - 5.0)
        gang.look(1, joining=seconds - 5.0)
        gang.look(2, silent=seconds, idle=seconds, has_begun=begun)
        return gang.ranks()

    # On a starved machine it hardly computes, for longer than peers may wait, or a rank may hang.
    assert look(100, begun=False) is None
    assert look(199, begun=False) is None
    assert look(201, begun=False) == [2]
    sentence = gang.watch.check().failures[0].message
    assert sentence.startswith(
        "has not begun the function, for which it first imports torch, horovod.torch, within "
        "start_timeout_seconds=200. Its host is short of processor time"
    )

    gang = Gang(replace(CONFIG, start_timeout_seconds=200, hang_timeout_seconds=None))
    gang.begin()
    assert look(150, begun=False) is None
    # Once it has begun, its peers wait for it as they would have from there.
    assert look(151, begun=True) is None
    assert look(180, begun=True) is None
    assert look(181, begun=True) == [2]
    assert "who have waited for it for 31 s" in gang.watch.check().failures[0].message


def test_a_driver_that_was_paused_has_heard_nobody_and_blames_nobody():
    gang = Gang()
    gang.begin()
    for rank in range(3):
        gang.look(rank, idle=50, silent=50)
    gang.watch.gone(1)
    assert verdicts_after(gang, 3600, 0.25, 1800, 0.25) == []
    # Of what comes after the pause, nothing is forgiven.
    (verdict,) = verdicts_after(gang, 2.5)
    assert [one.world.rank for one in verdict.failures] == [1]


def test_the_imports_of_a_rank_are_not_late_by_what_a_driver_was_paused():
    gang = Gang(replace(CONFIG, heartbeat_timeout_seconds=1000))
    gang.begin()
    gang.look(2, has_begun=False)
    assert verdicts_after(gang, 3600, 4, 4, 4, 4) == []
    (verdict,) = verdicts_after(gang, 4, 4)
    assert [one.world.rank for one in verdict.failures] == [2]


def test_a_watch_that_looks_often_forgives_nothing():
    gang = Gang()
    gang.begin()
    assert verdicts_after(gang, 4, 4) == []
    (verdict,) = verdicts_after(gang, 4)
    assert [one.status for one in verdict.failures] == [LOST] * 3


def test_while_nobody_has_come_the_slots_are_looked_after():
    gang = Gang()
    gang.watch.lost_slots = lambda: "2 of 3 slots are left"
    assert gang.watch.check().launch_problem == "2 of 3 slots are left"
    gang.begin([0], placed=False)
    assert gang.watch.check() is None


def test_one_that_never_reached_the_driver_may_be_the_one_that_works():
    gang = Gang()
    gang.begin([1, 2])
    gang.look(1, idle=1000)
    gang.look(2, idle=1000)
    assert gang.watch.check() is None


def test_an_agent_that_is_not_heard_is_lost():
    gang = Gang()
    gang.begin()
    gang.seconds += 9
    gang.watch.heard(0)
    gang.watch.heard(2)
    assert gang.watch.check() is None
    gang.seconds += 2
    failure = gang.watch.check().failures[0]
    assert (failure.world.rank, failure.status) == (1, LOST)
    assert "not been heard of for 11 s (heartbeat_timeout_seconds=10)" in failure.message


def test_an_agent_whose_connection_ends_is_lost_unless_it_comes_again_or_has_ended():
    gang = Gang()
    gang.begin()
    for rank in range(3):
        gang.watch.gone(rank)
    gang.watch.present(0, "host-0")
    gang.watch.ended(WORLDS[1])
    assert gang.watch.check() is None
    gang.seconds += 2.6
    failures = gang.watch.check().failures
    assert [one.world.rank for one in failures] == [2]
    assert "its Spark task ended without a word" in failures[0].message


def test_who_went_without_a_word_is_missing_at_once():
    gang = Gang()
    gang.begin()
    gang.watch.present(3, "host-3")
    for rank in (0, 2, 3):
        gang.watch.gone(rank)  # 3 never learnt its place: it is nobody's rank
    gang.watch.ended(WORLDS[1])
    gang.watch.gone(1)
    assert [outcome.world.rank for outcome in gang.watch.missing()] == [0, 2]
    gang.watch.present(2, "host-2")
    assert [outcome.world.rank for outcome in gang.watch.missing()] == [0]
    assert gang.watch.running() == {0, 2}

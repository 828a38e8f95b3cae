"""All ranks answer the same at every step, whatever each of them knows."""

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest

from checkpoint_ranks import run_ranks
from sparkdl_runner.checkpoint import (
    CheckpointError,
    CheckpointManager,
    Preempted,
    peers,
    should_stop,
    stopping,
)
from sparkdl_runner.checkpoint.save.schedule import Schedule
from sparkdl_runner.checkpoint.stopping import StopAgreement
from sparkdl_runner.rank import preemption


class Together:
    """Ranks in one thread: sums are there once all have begun theirs."""

    def __init__(self, size: int) -> None:
        self.begun: list[list[list[int]]] = [[] for _ in range(size)]

    def rank(self, rank: int):
        together = self

        class Rank:
            size = len(together.begun)

            def begin_sum(self, values):
                together.begun[rank].append(values)
                return len(together.begun[rank]) - 1

            def end_sum(self, number):
                return [
                    sum(column) for column in zip(*(b[number] for b in together.begun), strict=True)
                ]

            def broadcast(self, data, root=0):
                raise NotImplementedError

        found = Rank()
        found.rank = rank
        return found


def ask(schedules, together, steps) -> list[list[int]]:
    """The steps at which each rank is to save."""
    dues: list[list[int]] = [[] for _ in schedules]
    for step in steps:
        for rank, schedule in enumerate(schedules):
            if schedule.due(step, together.rank(rank)):
                dues[rank].append(step)
    return dues


def test_every_so_many_steps():
    together = Together(2)
    schedules = [Schedule(3, None, lambda: "") for _ in range(2)]
    assert ask(schedules, together, range(1, 11)) == [[3, 6, 9]] * 2


def test_not_again_right_after_a_save_or_a_restore():
    schedule = Schedule(10, None, lambda: "")
    schedule.note(120)
    asked = [step for step in range(121, 145) if schedule.due(step, peers.Peers())]
    assert asked == [130, 140]
    # Steps need not come one by one.
    assert [step for step in range(145, 200, 7) if schedule.due(step, peers.Peers())] == [
        152,
        166,
        173,
        180,
        194,
    ]


def test_rank_0s_clock_counts_and_a_save_sets_it_back():
    together = Together(2)
    times = [0.0, 1000.0]  # clocks that do not agree
    schedules = [
        Schedule(None, 10, lambda: "", clock=lambda rank=rank: times[rank]) for rank in (0, 1)
    ]
    dues = []
    for step in range(1, 41):
        times[0] += 2
        times[1] += 50
        answers = {s.due(step, together.rank(rank)) for rank, s in enumerate(schedules)}
        assert len(answers) == 1
        if answers.pop():
            dues.append(step)
    # At the step after the one at which ten seconds were over.
    assert dues == [6, 12, 18, 24, 30, 36]


@pytest.mark.parametrize("asked_ranks", [(0,), (2,), (1, 2)])
def test_a_stop_reaches_all_ranks_at_one_step(asked_ranks):
    def work(peers):
        agreement = StopAgreement()
        asked = ""
        schedule = Schedule(None, None, lambda: asked, agreement=agreement)
        dues = []
        for step in range(1, 8):
            # In the middle of a step.
            asked = "taken away" if step >= 5 and peers.rank in asked_ranks else ""
            if schedule.due(step, peers):
                dues.append(step)
        assert agreement.stop.is_preemption
        return dues, schedule.preempted.rank, schedule.preempted.leaving

    assert run_ranks(1, 3, work) == [([6, 7], asked_ranks[0], asked_ranks)] * 3


def test_all_ranks_stop_at_one_call_for_the_reason_of_the_lowest():
    def work(peers):
        agreement = StopAgreement(clock=lambda: 0.01 * asked)
        asked = 0
        for asked in range(1, 2000):
            own = f"rank {peers.rank} is done" if peers.rank and asked > 500 else ""
            stop = agreement.ask(peers, own)
            if stop:
                return asked, str(stop), stop.rank, agreement._calls_between
        return None

    (found,) = set(run_ranks(1, 4, work))
    called, reason, rank, between = found
    assert 500 < called <= 700
    assert (reason, rank) == ("rank 1 is done", 1)
    assert between == 100, "about one question a second, at 10 ms for a step"


def test_what_is_asked_of_a_rank_that_is_alone(monkeypatch):
    monkeypatch.setattr(stopping, "agreement", StopAgreement())
    assert should_stop() is None
    assert should_stop("nothing gets better").reason == "nothing gets better"
    assert should_stop().reason == "nothing gets better"


def test_a_manager_that_is_forgotten_listens_no_more(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    forgotten = CheckpointManager(tmp_path)
    assert signal.getsignal(signal.SIGTERM) != before
    del forgotten
    gc.collect()
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_saves_and_ends(tmp_path):
    def train():
        with CheckpointManager(tmp_path) as checkpoints:
            for step in range(1, 10):
                if step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                if checkpoints.due(step):
                    assert checkpoints.preempted
                    checkpoints.save(step, extra={"step": step})

    with pytest.raises(Preempted, match=r"Rank 0 on host \S+ .* saved step 3 and ended"):
        train()
    with CheckpointManager(tmp_path) as checkpoints:
        assert checkpoints.restore().extra == {"step": 3}
        assert not checkpoints.preempted
        assert not checkpoints.due(4)


def test_sigterm_during_a_save_of_the_same_step(tmp_path):
    """It is saved once, and ends once that is committed."""
    with CheckpointManager(tmp_path, every_steps=1) as checkpoints:
        assert checkpoints.due(1)
        checkpoints.save(1, extra=[1])
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpoints.due(1)
        with pytest.raises(Preempted):
            checkpoints.save(1, extra=[2])
        assert checkpoints.restore().extra == [1]


def test_a_stop_that_cannot_be_saved_is_an_error(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(1)
        checkpoints.wait()
        (tmp_path / "step-2").write_text("in the way")
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpoints.due(2)
        with pytest.raises(CheckpointError, match=r"step 2.*step 1 is still good"):
            checkpoints.save(2)


def test_outside_of_the_main_thread_signals_are_left_alone(tmp_path):
    found = []

    def use():
        with CheckpointManager(tmp_path, every_steps=2) as checkpoints:
            found.append(signal.getsignal(signal.SIGTERM))
            found.append([step for step in range(1, 6) if checkpoints.due(step)])

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL, [2, 4]]
    assert not preemption.requested()


def test_several_ranks_without_a_backend_are_told_what_to_do(tmp_path, monkeypatch):
    from sparkdl_runner.rank import world
    from sparkdl_runner.rank.world import Peer, assign_ranks

    found = [
        Peer(partition=p, host="h", host_key="h", address="::1", interface="lo") for p in range(2)
    ]
    monkeypatch.setattr(world, "_current", assign_ranks(found, backend="torch")[1])
    with CheckpointManager(tmp_path) as checkpoints:
        for call in (checkpoints.restore, lambda: checkpoints.save(1), lambda: checkpoints.due(1)):
            with pytest.raises(CheckpointError, match=r"Rank 1 on host h.*hvd\.init\(\) or"):
                call()


def test_texts_of_all_ranks_come_in_order():
    assert peers.Peers().gather_text("hä" * 40) == [
        ("hä" * 40).encode()[:64].decode("utf8", "replace")
    ]

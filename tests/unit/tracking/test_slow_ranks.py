"""A rank that is slow is named, once, and no other rank is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.rank.world import Peer, assign_ranks
from sparkdl_runner.tracking.report.performance import Counts
from sparkdl_runner.tracking.report.slow_ranks import SlowRanks, slow_parts
from sparkdl_runner.tracking.time_use import COMMUNICATION, COMPUTE, DATA, PARTS

STEP = 0.1


class Training:
    """Ranks that report as if they trained, one span of steps after another."""

    def __init__(self, size=4, **settings):
        peers = [
            Peer(partition=i, host=f"h{i}", host_key=f"h{i}", address=f"10.0.0.{i}", interface="e")
            for i in range(size)
        ]
        self.worlds = list(assign_ranks(peers, backend="torch").values())
        self.said = []
        self.ranks = SlowRanks(
            **{"factor": 1.3, "steps": 50, **settings}, say=lambda *told: self.said.append(told)
        )
        self.counts = [Counts() for _ in peers]
        self._report()

    def _report(self):
        for world, counts in zip(self.worlds, self.counts, strict=True):
            self.ranks.progress(world, {**vars(counts), "samples": 0})

    def go_on(self, slow=None, part=COMPUTE, times=2.0, steps=50, usual=0.04):
        longest = usual * (times if slow is not None else 1) + 0.01
        for rank, counts in enumerate(self.counts):
            seconds = dict.fromkeys(PARTS, 0.0)
            seconds[part] = usual * (times if rank == slow else 1)
            seconds[COMMUNICATION] = longest - seconds[part]
            added = Counts(
                steps=steps,
                running_seconds=steps * longest,
                seconds={name: steps * one for name, one in seconds.items()},
            )
            self.counts[rank] = counts.plus(added)
        self._report()


def test_a_slow_rank_is_named_within_a_hundred_steps_and_once():
    training = Training()
    training.go_on()
    training.go_on(slow=2, steps=30)
    assert not training.said, "a host may be busy for a moment"
    training.go_on(slow=2, steps=30)
    training.go_on(slow=2, steps=30)
    named, why = "rank 2 on h2 is slow", "which wait for it"
    assert training.said == [
        (
            f"{named}: its compute takes 80 ms of a step, and 40 ms on the other ranks, {why}",
            named,
        )
    ]
    training.go_on()
    assert training.said[1:] == [("no rank is slower than the others any more", "")]


def test_what_was_named_is_taken_back_when_the_ranks_start_again():
    training = Training()
    for _ in range(3):
        training.go_on(slow=2)
    (named,) = training.said
    training.worlds = [replace(world, attempt=1) for world in training.worlds]
    training._report()
    assert training.said == [named, ("no rank is slower than the others any more", "")]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_of_any_number_of_ranks_the_one_that_reads_slowly_is_named(size):
    training = Training(size)
    for _ in range(2):
        training.go_on(slow=size - 1, part=DATA)
    (text, _), *others = training.said
    assert text.startswith(f"rank {size - 1} on h{size - 1} is slow: its data wait takes 80 ms")
    assert not others


def test_a_rank_that_takes_turns_at_being_slow_is_not_named():
    training = Training()
    for turn in range(12):
        training.go_on(slow=turn % 4)
    assert not training.said


def test_ranks_of_one_host_that_others_use_differ_for_seconds_and_none_is_named():
    training = Training(2)
    # As measured of two equal ranks beside two busy loops on two cores.
    for times in (1.32, 1.79, 1.56, 1.0, 1.8, 1.42, 1.0, 1.47, 1.43):
        training.go_on(slow=1, times=times)
    assert not training.said


def test_a_rank_that_is_little_slower_is_named_once_that_is_no_chance():
    training = Training()
    spans = 0
    while not training.said:
        training.go_on(slow=1, times=1.5)
        spans += 1
    assert 3 <= spans <= 12


def test_what_hardly_counts_in_a_step_is_not_named():
    training = Training()
    for _ in range(4):
        training.go_on(slow=0, usual=0.0009, part=DATA, steps=3000)
    assert not training.said


def test_a_single_rank_has_nobody_to_wait_for():
    training = Training(1)
    for _ in range(4):
        training.go_on(slow=0)
    assert not training.said


def test_fast_steps_are_compared_once_enough_time_was_sampled():
    training = Training()
    for _ in range(4):
        training.go_on(slow=1, usual=0.001)  # 0.6 s in all
    assert not training.said


@given(
    st.lists(st.floats(0.01, 10.0), min_size=2, max_size=9),
    st.floats(1.05, 4.0),
)
def test_less_than_half_of_the_ranks_are_slow_at_a_time(seconds, factor):
    spans = {
        rank: Counts(
            steps=100, running_seconds=100 * max(seconds), seconds=dict.fromkeys(PARTS, 0.0)
        )
        for rank in range(len(seconds))
    }
    for rank, own in enumerate(seconds):
        spans[rank].seconds[COMPUTE] = 100 * own
    slow = slow_parts(spans, factor)
    assert len(slow) <= len(seconds) / 2
    assert all(seconds[one.rank] > factor * min(seconds) for one in slow)


@pytest.mark.parametrize(
    ("setting", "error", "sentence"),
    [
        ({"slow_rank_factor": 1}, ValueError, "slow_rank_factor is 1; it must be more than 1"),
        ({"slow_rank_factor": "2"}, TypeError, "slow_rank_factor is '2'; it must be a number"),
        ({"slow_rank_steps": 0}, ValueError, "slow_rank_steps is 0; it must be 1 or more"),
        ({"slow_rank_stops": 1}, TypeError, "slow_rank_stops is 1; it must be True or False"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, error, sentence):
    with pytest.raises(error, match=sentence):
        RunConfig(**setting)


def test_other_settings_are_meant():
    training = Training(factor=2.5, steps=50)
    for _ in range(4):
        training.go_on(slow=1)
    assert not training.said
    training = Training(steps=200)
    for _ in range(3):
        training.go_on(slow=1)
    assert not training.said
    training.go_on(slow=1)
    assert len(training.said) == 1

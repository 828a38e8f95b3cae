"""Where the time of all attempts of a training went."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkdl_runner.tracking.report.goodput import (
    CHECKPOINT,
    DATA_WAIT,
    END,
    LOST,
    PARTS,
    PROGRESS,
    RESTART,
    START,
    TIME_TAG,
    AttemptTime,
    Goodput,
    goodput_of,
    times_in,
)

FAILED = AttemptTime(
    began_at=100.0,
    ended_at=160.0,
    first_step_at=110.0,
    running_seconds=40.0,
    input_seconds=4.0,
    checkpoint_seconds=6.0,
    steps=30,
    last_step=31,
    checkpoint_step=25,
    has_failed=True,
)
WENT_ON = AttemptTime(
    began_at=170.0,
    ended_at=200.0,
    first_step_at=175.0,
    running_seconds=20.0,
    began_after=25,
    steps=19,
    last_step=45,
)


def test_each_second_goes_to_one_part():
    found = goodput_of([FAILED, WENT_ON]).seconds
    assert found == pytest.approx(
        {
            START: 10,
            DATA_WAIT: 4,
            CHECKPOINT: 6,
            LOST: 6,  # One second for each of the steps 26 to 31.
            RESTART: 10 + 10 + 5,  # To notice, to wait, and to come to the first step again.
            PROGRESS: 24 + 20,
            END: 5,
        }
    )
    assert goodput_of([FAILED, WENT_ON]).share == pytest.approx(0.44)
    told = goodput_of([FAILED, WENT_ON]).sentence()
    assert told.startswith("goodput 44.0% of 100 s (start 10.0%, data wait 4.0%")


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({PROGRESS: 9, START: 1}, "goodput 90.0% of 10 s (start 10.0%)"),
        ({PROGRESS: 9999, LOST: 0.4, END: 0.6}, "goodput 100.0% of 10,000 s"),
        (
            {PROGRESS: 9990, END: 5, LOST: 5},
            "goodput 99.9% of 10,000 s (lost steps 0.1%, end 0.1%)",
        ),
    ],
)
def test_what_reads_as_zero_is_left_out(parts: dict[str, float], told: str) -> None:
    assert Goodput(seconds=dict.fromkeys(PARTS, 0.0) | parts).sentence() == told


def test_what_a_last_attempt_that_failed_did_after_its_checkpoint_is_lost():
    found = goodput_of([FAILED]).seconds
    assert found[LOST] == pytest.approx(6)
    assert (found[RESTART], found[END]) == (0, pytest.approx(10)), "it did not start again"
    assert goodput_of([]).share == 0


def test_an_attempt_that_made_no_step_makes_none_be_lost_that_the_next_goes_on_from():
    died = AttemptTime(began_at=161.0, ended_at=165.0, has_failed=True)
    found, without = goodput_of([FAILED, died, WENT_ON]), goodput_of([FAILED, WENT_ON])
    assert found.seconds == pytest.approx(without.seconds), "it took of the time of restarting"
    begins = AttemptTime(began_at=161.0, ended_at=162.0)
    assert goodput_of([FAILED, begins]).seconds[LOST] == pytest.approx(6), "as of its checkpoint"


moments = st.floats(0, 1e6)
attempts = st.builds(
    AttemptTime,
    began_at=moments,
    ended_at=moments,
    first_step_at=st.none() | moments,
    running_seconds=moments,
    input_seconds=moments,
    checkpoint_seconds=moments,
    began_after=st.integers(0, 99),
    steps=st.integers(0, 99),
    last_step=st.integers(0, 99),
    checkpoint_step=st.integers(0, 99),
    has_failed=st.booleans(),
)


ALL_LOST = AttemptTime(
    began_at=0.0,
    ended_at=155347.0,
    first_step_at=0.0,
    running_seconds=155347.0,
    checkpoint_seconds=1.5809639184735715,
    steps=27,
    last_step=27,
    has_failed=True,
)


@given(st.lists(attempts, min_size=1, max_size=5))
@example([ALL_LOST])
def test_parts_are_never_negative_and_make_up_the_whole(told):
    found = goodput_of(told)
    assert all(found.seconds[part] >= 0 for part in PARTS)
    whole = sum(max(0.0, one.ended_at - one.began_at) for one in told)
    whole += sum(max(0.0, b.began_at - a.ended_at) for a, b in pairwise(told))
    assert sum(found.seconds.values()) == pytest.approx(whole, abs=1e-3)
    assert 0 <= found.share <= 1


@given(st.text(max_size=50))
def test_tags_are_read_again_and_what_is_none_is_left(text):
    tags = {TIME_TAG.format(0): FAILED.tag(), TIME_TAG.format(1): text}
    assert times_in(tags, range(3)) == [FAILED]
    earlier = {"sparkdl_runner.attempt.0.time": FAILED.tag(), TIME_TAG.format(1): WENT_ON.tag()}
    assert times_in(earlier, range(2)) == [FAILED, WENT_ON], "also of an earlier version"

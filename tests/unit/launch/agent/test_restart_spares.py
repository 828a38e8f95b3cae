"""When spare workers for a restart are started, and what is left of them in the end."""

from __future__ import annotations

import math
import os

import pytest

from sparkdl_runner.launch.agent.spares.restart_spares import RESTART_SECONDS, RestartSpares
from sparkdl_runner.rank import restart_memory


class Kept:
    """Stands for the pool, and notes each call: the seconds, and if it is for a restart."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, bool]] = []

    def __call__(self, seconds: float, *, for_restart: bool) -> None:
        self.asked.append((seconds, for_restart))


@pytest.mark.parametrize(
    ("seconds", "may_restart", "while_it_runs"),
    [(60.0, True, [(math.inf, True)]), (60.0, False, []), (0.0, True, []), (0.0, False, [])],
)
def test_only_who_wants_spares_and_may_restart_has_one_beside_a_rank(
    seconds: float, may_restart: bool, while_it_runs: list[tuple[float, bool]]
) -> None:
    kept = Kept()
    spares = RestartSpares(kept, seconds=seconds, may_restart=may_restart)
    spares.rank_runs()
    assert kept.asked == while_it_runs
    spares.close()
    assert kept.asked == [*while_it_runs, (seconds, False)]


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_restart_finds_a_worker_that_has_begun_to_import(seconds: float) -> None:
    kept = Kept()
    spares = RestartSpares(kept, seconds=seconds, may_restart=True)
    spares.restart_comes()
    spares.close()
    assert kept.asked == [(RESTART_SECONDS, True)]


def test_a_rank_that_runs_late_does_not_make_a_spare_wait_for_ever() -> None:
    kept = Kept()
    spares = RestartSpares(kept, seconds=60.0, may_restart=True)
    spares.restart_comes()
    spares.rank_runs()
    spares.close()
    assert kept.asked == [(RESTART_SECONDS, True)]


def test_where_none_may_come_nothing_is_started_for_a_restart() -> None:
    kept = Kept()
    spares = RestartSpares(kept, seconds=0.0, may_restart=False)
    spares.restart_comes()
    assert kept.asked == []
    spares.close()
    assert kept.asked == [(0.0, False)]


@pytest.mark.parametrize(("may_restart", "told"), [(True, "run-1 77"), (False, "run-1 0")])
def test_ranks_learn_whether_memory_may_outlive_them_and_with_whom_it_ends(
    may_restart: bool, told: str
) -> None:
    spares = RestartSpares(Kept(), seconds=0.0, may_restart=may_restart, run="run-1")
    assert spares.memory(lives_with=77) == {restart_memory.VARIABLE: told}
    spares = RestartSpares(Kept(), seconds=0.0, may_restart=may_restart)
    assert spares.memory(lives_with=77) == {}


@pytest.mark.parametrize("is_expected", [True, False])
def test_memory_of_ranks_ends_with_the_run_and_stays_for_a_restart(
    is_expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[str, int]] = []
    monkeypatch.setattr(
        restart_memory, "end_holders", lambda run, agent: ended.append((run, agent))
    )
    spares = RestartSpares(Kept(), seconds=0.0, may_restart=True, run="run-1")
    if is_expected:
        spares.restart_comes()
    spares.close()
    assert ended == ([] if is_expected else [("run-1", os.getpid())])

"""When spare workers for a restart are started, and what is left of them in the end."""

from __future__ import annotations

import math

import pytest

from sparkdl_runner.launch.agent.spares.restart_spares import RESTART_SECONDS, RestartSpares


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

"""A process keeps its template for a restart, and for the next call."""

from __future__ import annotations

import os

import pytest

from sparkdl_runner.launch.agent.spares.restart_spares import RESTART_SECONDS, RestartSpares
from sparkdl_runner.rank import restart_memory


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(("may_restart", "comes"), [(True, True), (True, False), (False, True)])
def test_it_waits_for_a_restart_that_comes_if_it_is_to_and_else_for_the_next_call(
    seconds: float, waits: bool, may_restart: bool, comes: bool
) -> None:
    kept: list[float] = []
    spares = RestartSpares(
        kept.append, seconds=seconds, may_restart=may_restart, waits_for_restart=waits
    )
    if comes:
        spares.restart_comes()
    assert kept == []
    spares.close()
    assert kept == [RESTART_SECONDS if may_restart and comes and waits else seconds]


@pytest.mark.parametrize(("may_restart", "told"), [(True, "run-1 77"), (False, "run-1 0")])
def test_ranks_learn_whether_memory_may_outlive_them_and_with_whom_it_ends(
    may_restart: bool, told: str
) -> None:
    spares = RestartSpares([].append, seconds=0.0, may_restart=may_restart, run="run-1")
    assert spares.memory(lives_with=77) == {restart_memory.VARIABLE: told}
    spares = RestartSpares([].append, seconds=0.0, may_restart=may_restart)
    assert spares.memory(lives_with=77) == {}


@pytest.mark.parametrize("is_expected", [True, False])
def test_memory_of_ranks_ends_with_the_run_and_stays_for_a_restart(
    is_expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[str, int]] = []
    monkeypatch.setattr(
        restart_memory, "end_holders", lambda run, agent: ended.append((run, agent))
    )
    spares = RestartSpares([].append, seconds=0.0, may_restart=True, run="run-1")
    if is_expected:
        spares.restart_comes()
    spares.close()
    assert ended == ([] if is_expected else [("run-1", os.getpid())])

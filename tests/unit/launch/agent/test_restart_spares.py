"""How long the template of an attempt's ranks stays after them."""

from __future__ import annotations

import pytest

from sparkdl_runner.launch.agent.spares.restart_spares import RESTART_SECONDS, RestartSpares


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize(("may_restart", "comes"), [(True, True), (True, False), (False, True)])
def test_it_waits_for_a_restart_that_comes_and_else_for_the_next_call(
    seconds: float, may_restart: bool, comes: bool
) -> None:
    kept: list[float] = []
    spares = RestartSpares(kept.append, seconds=seconds, may_restart=may_restart)
    if comes:
        spares.restart_comes()
    assert kept == []
    spares.close()
    assert kept == [RESTART_SECONDS if may_restart and comes else seconds]

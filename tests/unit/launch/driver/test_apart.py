"""Ranks that never joined one another: a warning, an error, or what was meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkdl_runner import RanksApartError, RunConfig
from sparkdl_runner.launch.driver.apart import check_joined
from sparkdl_runner.launch.wire.outcome import Outcome, Status
from sparkdl_runner.rank.world import Peer, assign_ranks

PEERS = [
    Peer(partition=rank, host="h", host_key="k", address="::1", interface="lo") for rank in range(3)
]
APART = [
    Outcome(world=world, status=Status.RETURNED, ended_at=0.0, has_joined=False)
    for world in assign_ranks(PEERS, backend="torch").values()
]
NONE, TRUE, FALSE = (RunConfig(require_collectives=one) for one in (None, True, False))


def test_ranks_that_never_joined_are_told_with_the_usual_causes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = check_joined(APART, NONE)
    assert capsys.readouterr().err == f"sparkdl_runner: {told}\n"
    assert told.startswith("The 3 ranks never joined one another: each ran by itself")
    for cause in ("init_process_group()", "TrainingArguments", "devices=1", "ives=False"):
        assert cause in told


def test_that_is_an_error_where_collectives_are_required() -> None:
    with pytest.raises(RanksApartError, match="since require_collectives is True"):
        check_joined(APART, TRUE)


@pytest.mark.parametrize(
    ("outcomes", "config"),
    [
        (APART, FALSE),
        (APART[:1], TRUE),
        ([*APART[:2], replace(APART[2], has_joined=True)], TRUE),
        ([*APART[:2], replace(APART[2], status=Status.STOPPED)], NONE),
        ([replace(one, of_each=True) for one in APART], NONE),
    ],
)
def test_nothing_is_said_of_what_is_meant_or_of_a_single_rank(
    outcomes: list[Outcome], config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_joined(outcomes, config) == ""
    assert capsys.readouterr().err == ""


def test_the_setting_is_one_of_three() -> None:
    with pytest.raises(TypeError, match="require_collectives is 'yes'"):
        RunConfig(require_collectives="yes")  # type: ignore[arg-type]

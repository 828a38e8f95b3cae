"""Whether the workers of a process are forked from a template."""

from __future__ import annotations

import pytest

from sparkdl_runner import RunConfig
from sparkdl_runner.launch.wire.attempt import AttemptSpec


@pytest.mark.parametrize(
    ("asked", "seconds", "may_restart", "alone"),
    [
        (None, 0.0, False, False),
        (None, 60.0, False, True),
        (None, 0.0, True, True),
        (0.0, 0.0, True, False),  # For who has no memory for it.
        (5.0, 5.0, False, True),
    ],
)
def test_one_is_there_for_several_ranks_a_restart_and_the_next_call(
    asked: float | None, seconds: float, may_restart: bool, alone: bool
) -> None:
    attempt = AttemptSpec(
        backend="torch",
        function=b"",
        config=RunConfig(spare_seconds=asked),
        run="r",
        may_restart=may_restart,
        spare_seconds=seconds,
    )
    assert attempt.uses_template(1) == alone
    assert attempt.uses_template(2)
    assert attempt.uses_template(2, can_keep=False)
    assert not attempt.uses_template(1, can_keep=False)

"""A rank takes its task's GPUs, unless the run names its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_runner.launch.agent.rank_task import RankTask
from sparkdl_runner.launch.config import RunConfig
from sparkdl_runner.launch.wire.attempt import AttemptSpec


@pytest.mark.parametrize(
    ("variables", "expected"), [({}, ("2",)), ({"CUDA_VISIBLE_DEVICES": ""}, ())]
)
def test_a_run_that_says_which_gpus_ranks_see_takes_none_of_the_task(
    monkeypatch, variables, expected
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nothing: Any = None
    task = RankTask(
        attempt=AttemptSpec(
            backend="torch", function=b"", config=RunConfig(), run="run", variables=variables
        ),
        channel=nothing,
        single_host=True,
        most_result_bytes=1,
        sends_value=False,
        spare=nothing,
    )
    given = {"gpu": SimpleNamespace(addresses=["2"])}
    assert task._gpus(SimpleNamespace(resources=lambda: given)) == expected

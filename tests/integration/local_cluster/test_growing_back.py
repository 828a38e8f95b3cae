"""A run that lost an executor goes on as fewer ranks, and grows once another has come."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import rank_functions

from every_backend import EVERY_BACKEND
from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.launch.driver.spark import growth

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

STEPS_OF_A_WHOLE_GANG = 20
MOST_STEPS = 50_000


def train_until_whole(backend: str, folder: str) -> list[list[int]]:
    """Returns attempt, size, first step and weight of each attempt that began.

    Every step adds 1 to the weight, over all ranks.
    """
    import torch

    from sparkdl_runner import current_world
    from sparkdl_runner.checkpoint import CheckpointManager

    rank_functions.init(backend)
    world = current_world()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    with CheckpointManager(folder, every_steps=10) as checkpoints:
        restored = checkpoints.restore(model)
        first = restored.step if restored else 0
        began = restored.extra if restored else []
        began.append([world.attempt, world.size, first, int(model.weight)])
        if world.attempt == 1:
            Path(folder, "alone").touch()
        last = first + STEPS_OF_A_WHOLE_GANG if first and world.size == 2 else MOST_STEPS
        for step in range(first + 1, last + 1):
            time.sleep(0.01)
            model.weight.data += sum(rank_functions.gather(backend, 1 / world.size))
            if checkpoints.due(step):
                checkpoints.save(step, model, extra=began)
            if world.attempt == 0 and world.rank == 1 and step == 35:
                while not checkpoints.list():  # It is written in the background.
                    time.sleep(0.01)
                Path(folder, "lost").touch()
                agent = psutil.Process(os.getppid())
                executor = next(one for one in agent.parents() if "java" in one.name())
                executor.send_signal(signal.SIGKILL)
    return [*began, [world.attempt, world.size, last, int(model.weight)]]


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_an_executor_that_was_lost_and_replaced(
    two_slots, no_replacement_while, tmp_path, monkeypatch, capsys, backend
):
    lost, alone = tmp_path / "lost", tmp_path / "alone"
    no_replacement_while(lambda: lost.exists() and not alone.exists())
    monkeypatch.setattr(growth, "LOOK_SECONDS", 0.5)
    config = RunConfig(
        max_restarts=1, restart_backoff_seconds=0, slot_wait_seconds=0, tracking=False
    )
    runner = DistributedRunner(num_proc=(1, 2), backend=backend, run_config=config)
    began = runner.run(train_until_whole, backend, str(tmp_path))
    assert [one[:2] for one in began] == [[0, 2], [1, 1], [2, 2], [2, 2]]
    steps = [one[2] for one in began]
    assert 0 == steps[0] < steps[1] < steps[2] < steps[3] == steps[2] + STEPS_OF_A_WHOLE_GANG
    assert [one[3] for one in began] == steps, "no step is missing, and none counts twice"
    told = capsys.readouterr().err
    assert "1 → 2 ranks: executor " in told
    assert f"The training goes on from step {steps[2]}." in told
    assert "restart 1 of 1" in told

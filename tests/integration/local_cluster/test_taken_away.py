"""A host that will be taken away: the ranks save, end, and go on as fewer elsewhere."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import rank_functions

from metadata_service import metadata_service, notice
from sparkdl_runner import DistributedRunner, RunConfig

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def train_until_asked(backend: str, folder: str) -> tuple[int, int, bool]:
    """Attempt 0 has no end of its own. Returns attempt, size, and whether it was gone on with."""
    import torch

    from sparkdl_runner import current_world
    from sparkdl_runner.checkpoint import CheckpointManager

    rank_functions.init(backend)
    world = current_world()
    model = torch.nn.Linear(2, 2)
    with CheckpointManager(f"{folder}/checkpoints", every_steps=100_000) as checkpoints:
        restored = checkpoints.restore(model)
        first = restored.step if restored else 0
        for step in range(first + 1, first + (3 if world.attempt else 100_000)):
            time.sleep(0.01)
            if step == 2 and world.attempt == 0 and world.rank == 1:
                agent = psutil.Process(os.getppid())
                executor = next(one for one in agent.parents() if "java" in one.name())
                Path(folder, "executor.new").write_text(str(executor.pid))
                Path(folder, "executor.new").rename(Path(folder, "executor"))
            if checkpoints.due(step):
                checkpoints.save(step, model)
    return world.attempt, world.size, first > 0


def runner(backend: str) -> DistributedRunner:
    config = RunConfig(max_restarts=1, min_num_proc=1, slot_wait_seconds=0, tracking=False)
    return DistributedRunner(num_proc=2, backend=backend, run_config=config)


def test_spark_decommissions_an_executor(two_slots, no_replacement_while, tmp_path, capsys):
    no_replacement_while((tmp_path / "executor").exists)

    def decommission() -> None:
        """As Kubernetes' hook and Databricks do it."""
        while not (tmp_path / "executor").exists():
            time.sleep(0.05)
        os.kill(int((tmp_path / "executor").read_text()), signal.SIGPWR)

    thread = threading.Thread(target=decommission, daemon=True)
    thread.start()
    ended = runner("torch").run(train_until_asked, "torch", str(tmp_path))
    thread.join()
    assert ended == (1, 1, True)
    told = capsys.readouterr().err
    assert "was asked to stop (Spark decommissions executor" in told
    assert "restart 1 of 1" not in told


def test_ec2_gives_notice_of_a_spot_instance(
    two_slots, no_replacement_while, tmp_path, monkeypatch, capsys
):
    no_replacement_while((tmp_path / "executor").exists)
    environment = two_slots.sparkContext.environment
    with metadata_service() as service:
        monkeypatch.setitem(environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT", service.uri)
        service.answers = [notice()]
        assert runner("horovod").run(train_until_asked, "horovod", str(tmp_path)) == (1, 1, True)
        assert service.asked >= 2  # By one rank of each attempt.
    assert "(EC2's notice: terminate at 2026-11-23T21:00:00Z)" in capsys.readouterr().err

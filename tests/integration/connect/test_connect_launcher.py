"""Ranks through Spark Connect, on a server of its own whose Python lacks this package."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import rank_functions
from connect_server import wait_for

from processes import wait_until_gone, workers
from sparkdl_runner import (
    DistributedRunner,
    LaunchError,
    RunConfig,
    WorkerDiedError,
    WorkerFailedError,
    current_world,
    end_spare_workers,
)
from sparkdl_runner.errors import ResultTooLargeError
from sparkdl_runner.launch.driver.connect import launcher
from sparkdl_runner.rank import restart_memory

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("session")]
LIGHT = pytest.mark.usefixtures("light_ranks")
QUIET = {"driver_log_verbosity": "log_callback_only", "require_collectives": False}


def light(num_proc=2, **settings) -> DistributedRunner:
    """For what does without torch, in tests that are ``LIGHT``."""
    config = RunConfig(**{**QUIET, **settings})
    return DistributedRunner(num_proc=num_proc, backend="horovod", run_config=config)


def speak_and_tell():
    rank_functions.speak()
    return current_world().rank


@LIGHT
def test_values_of_all_ranks_come_back_and_their_lines_are_shown(capfd):
    assert light(driver_log_verbosity="all").gather(speak_and_tell) == [0, 1]
    lines = capfd.readouterr().out.splitlines()
    for rank in (0, 1):
        printed = [f"printed by {rank}", f"complaint of {rank}", "100%", "no newline at the end"]
        assert {f"[rank {rank}] {text}" for text in printed} <= set(lines)


@LIGHT
def test_num_proc_0_takes_all_slots_of_the_server():
    assert light(0).run(rank_functions.world_size) == 4


def test_ranks_of_horovod_meet():
    assert DistributedRunner(num_proc=2, backend="horovod").run(
        rank_functions.meet, backend="horovod"
    ) == [0, 1]


def train(folder: str) -> tuple[int, int, str]:
    """Saves a checkpoint, loses rank 1 and all files but the manifest, and goes on from it."""
    import torch

    from sparkdl_runner.checkpoint import CheckpointManager
    from sparkdl_runner.tracking import log_metrics

    rank = rank_functions.init("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with CheckpointManager(folder, every_steps=2, memory_copies=1) as checkpoints:
        restored = checkpoints.restore(model, optimizer)
        first = restored.step if restored else 0
        for step in range(first + 1, 5):
            log_metrics(step, loss=1 / step)
            if checkpoints.due(step):
                checkpoints.save(step, model, optimizer)
                checkpoints.wait()
            if step == 3 and current_world().attempt == 0:
                rank_functions.gather("torch", rank)  # Rank 0 reads no file any more.
                if rank == 1:
                    for path in Path(folder).glob("step-2/*/*"):
                        if path.name != "manifest.json":
                            path.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
                rank_functions.allreduce_until_stopped("torch")
    return current_world().attempt, first, restart_memory.of_this_rank()[0]


def test_a_training_goes_on_from_its_checkpoint_in_memory_and_is_in_mlflow(tmp_path, new_store):
    import mlflow

    from sparkdl_runner.tracking import Tracking

    tracking = Tracking(tracking_uri=new_store(tmp_path))
    config = RunConfig(max_restarts=1, restart_backoff_seconds=0.1, tracking=tracking)
    runner = DistributedRunner(num_proc=2, backend="torch", run_config=config)
    *found, name = runner.run(train, str(tmp_path / "checkpoints"))
    assert found == [1, 2]
    wait_for(lambda: not list(restart_memory.holders(name)))
    client = mlflow.MlflowClient(tracking.tracking_uri)
    losses = client.get_metric_history(runner.mlflow_run_id, "loss")
    assert {one.step: one.value for one in losses} == {step: 1 / step for step in range(1, 5)}
    run = client.get_run(runner.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["sparkdl_runner.application_id"].startswith("local-")
    end_spare_workers()  # One that was for the restart would wait for another.


@LIGHT
def test_an_error_in_a_rank_is_raised_with_rank_host_and_traceback(way):
    with pytest.raises(WorkerFailedError, match="raised ValueError: with a child") as caught:
        light().run(rank_functions.start_a_sleeper_and_fail)
    error = caught.value
    assert (error.rank, error.host) == (1, os.uname().nodename)
    assert isinstance(error.__cause__, ValueError) or way == "headless"
    assert "in start_a_sleeper_and_fail" in error.remote_traceback
    assert wait_until_gone("4711"), "what a rank has started ends with it"


@LIGHT
def test_a_task_has_several_ranks_where_that_is_said(way):
    ranks = light(6, ranks_per_task=2).gather(lambda: (current_world().rank, os.getppid()))
    assert [rank for rank, _ in ranks] == list(range(6))
    agents = [agent for _, agent in ranks]
    assert agents[::2] == agents[1::2]
    assert len(set(agents)) == 3


def be_killed():
    if current_world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


@LIGHT
def test_a_killed_rank_is_named_and_how_it_ended(way):
    with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
        light().run(be_killed)
    assert (caught.value.rank, caught.value.host) == (1, os.uname().nodename)


@LIGHT
def test_large_values_come_in_chunks(way):
    value = light().run(lambda: bytes(range(256)) * 40_000)  # Three chunks.
    assert value == bytes(range(256)) * 40_000


@LIGHT
def test_values_that_are_too_large_for_the_server_come_by_the_channel(monkeypatch):
    monkeypatch.setattr(launcher, "MOST_RESULT_BYTES", 1 << 20)
    assert light().run(lambda: bytes(3 << 20)) == bytes(3 << 20)


@LIGHT
def test_without_the_channel_they_are_kept_and_it_is_said_where(headless, monkeypatch, capsys):
    monkeypatch.setattr(launcher, "MOST_RESULT_BYTES", 1 << 20)
    with pytest.raises(ResultTooLargeError, match="rank 0 returned takes 3,1") as caught:
        light().run(lambda: bytes(3 << 20))
    assert "executors do not reach this client, so that nothing is heard" in capsys.readouterr().err
    kept = re.search(r"/\S*sparkdl_runner-values-\S*[\w]", str(caught.value))[0]
    assert Path(kept).stat().st_size > 3 << 20
    Path(kept).unlink()


def test_a_large_function_is_sent_as_a_file_which_no_heap_holds():
    """In a message, 80 MB end a server of default size."""
    data = bytes(200 << 20)
    assert light().gather(lambda: len(data)) == [200 << 20] * 2


def test_more_ranks_than_slots_is_told_at_once():
    with pytest.raises(LaunchError, match=r"5 ranks need 5 task slots at once, .* has 4 "):
        light(5, slot_wait_seconds=600).run(print)


@LIGHT
def test_busy_slots_are_waited_for(busy, capfd):
    told = []

    def is_told() -> bool:
        told.append(capfd.readouterr().err)
        return "waiting until 2 slots are free at once" in "".join(told)

    assert light().run(rank_functions.world_size) == 2, "the probe has its own wait"
    with ThreadPoolExecutor(1) as pool, busy(3) as release:
        waiting = pool.submit(light().run, rank_functions.world_size)
        wait_for(lambda: is_told() or waiting.done())
        release()
        assert waiting.result() == 2


@LIGHT
def test_a_script_travels(tmp_path, capfd):
    (tmp_path / "helper.py").write_text("word = 'travelled'\n")
    (tmp_path / "script.py").write_text("import helper, sys\nprint(helper.word, *sys.argv[1:])\n")
    light(driver_log_verbosity="all").run_script(tmp_path / "script.py", ["far"])
    assert "[rank 1] travelled far" in capfd.readouterr().out.splitlines()


@LIGHT
def test_spare_workers_wait_for_the_next_call_and_can_be_ended():
    runner = light(4, spare_seconds=600)  # In each of the server's Python processes.
    runner.gather(os.getpid)
    wait_for(lambda: len(workers()) >= 4)
    held = {one.pid for one in workers()}
    assert set(runner.gather(os.getppid)) <= held  # They are forked from these.
    end_spare_workers()
    assert wait_until_gone("sparkdl_runner.launch.worker")

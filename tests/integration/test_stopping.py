"""A training ends by itself when it is asked to: by a clock, on the driver, by a tag of its run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.errors import RunnerError

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def ask_for_long(backend: str) -> Any:
    """Asks after each step; returns where each rank ended, and why."""
    import time

    from sparkdl_runner.checkpoint import should_stop

    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo")
    for step in range(6000):
        time.sleep(0.01)
        if stop := should_stop():
            return step, stop.reason, stop.rank, stop.is_preemption
    return None


def test_the_driver_asks_and_all_ranks_end_at_one_step():
    runner = DistributedRunner(num_proc=-2, config=RunConfig(tracking=False))
    with pytest.raises(RunnerError, match="runs nothing"):
        runner.request_stop()
    threading.Timer(3, runner.request_stop, ["it is late"]).start()
    first, second = runner.gather(ask_for_long, "torch")
    assert first == second
    assert first[1:] == ("it is late", 0, False)


def test_the_tag_of_the_run_asks_once(tmp_path, monkeypatch):
    import mlflow

    from sparkdl_runner.tracking import Tracking, stop_tag

    monkeypatch.setattr(stop_tag, "LOOK_SECONDS", 0.2)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run = client.create_run("0").info.run_id
    client.set_tag(run, stop_tag.STOP_TAG, "of an earlier attempt")
    config = RunConfig(tracking=Tracking(run_id=run), time_limit_seconds=120)
    runner = DistributedRunner(num_proc=-2, backend="horovod", config=config)
    asked = threading.Timer(6, client.set_tag, [run, stop_tag.STOP_TAG, "enough"])
    asked.start()
    first, second = runner.gather(ask_for_long, "horovod")
    assert first == second
    assert first[1:] == ("the run's tag sparkdl_runner.stop asks for it: enough", 0, False)
    assert stop_tag.STOP_TAG not in client.get_run(run).data.tags

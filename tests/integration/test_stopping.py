"""A training ends by itself when it is asked to: by a clock, on the driver, by a tag of its run."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from processes import workers
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
    for step in range(60_000):
        time.sleep(0.01)
        if stop := should_stop():
            return step, stop.reason, stop.rank, stop.is_preemption
    return None


def once_ranks_run(action: Callable[..., None], *arguments: str) -> None:
    """Calls it in the background; a clock would not know how long a busy machine takes."""

    def wait() -> None:
        while not workers():
            time.sleep(0.1)
        action(*arguments)

    threading.Thread(target=wait, daemon=True).start()


def test_the_driver_asks_and_all_ranks_end_at_one_step():
    runner = DistributedRunner(num_proc=-2, run_config=RunConfig(tracking=False))
    with pytest.raises(RunnerError, match="runs nothing"):
        runner.request_stop()
    once_ranks_run(runner.request_stop, "it is late")
    first, second = runner.gather(ask_for_long, "torch")
    assert first == second
    assert first[1:] == ("it is late", 0, False)


def test_the_tag_of_the_run_asks_once(tmp_path, monkeypatch, new_store):
    import mlflow

    from sparkdl_runner.tracking import Tracking, stop_tag

    monkeypatch.setattr(stop_tag, "LOOK_SECONDS", 0.2)
    store = new_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    client = mlflow.MlflowClient(store)
    run = client.create_run("0").info.run_id
    client.set_tag(run, stop_tag.STOP_TAG, "of an earlier attempt")
    config = RunConfig(tracking=Tracking(run_id=run), time_limit_seconds=3600)
    runner = DistributedRunner(num_proc=-2, backend="horovod", run_config=config)
    once_ranks_run(client.set_tag, run, stop_tag.STOP_TAG, "enough")
    first, second = runner.gather(ask_for_long, "horovod")
    assert first == second
    assert first[1:] == ("the run's tag sparkdl_runner.stop asks for it: enough", 0, False)
    assert stop_tag.STOP_TAG not in client.get_run(run).data.tags


def test_a_rank_that_the_others_wait_for_is_named_and_may_end_the_training(
    tmp_path, monkeypatch, new_store, capfd
):
    import mlflow

    store = new_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)

    def train() -> tuple[int, str]:
        import torch
        import torch.distributed as dist

        from sparkdl_runner.checkpoint import should_stop
        from sparkdl_runner.tracking import log_metrics

        dist.init_process_group("gloo")
        for step in range(1, 10_000):
            time.sleep(0.09 if dist.get_rank() == 1 else 0.03)
            dist.all_reduce(torch.ones(1))
            log_metrics(step, samples=1)
            if stop := should_stop():
                return step, stop.reason
        raise AssertionError("nobody was named")

    path = tmp_path / "events.jsonl"
    config = RunConfig(tracking=True, slow_rank_stops=True, slow_rank_steps=10, events=str(path))
    runner = DistributedRunner(num_proc=-2, run_config=config)
    first, second = runner.gather(train)
    assert first == second
    assert re.fullmatch(r"rank 1 on \S+ is slow", first[1])
    named = r"rank 1 on \S+ is slow: its compute takes \S+ ms of a step, and \S+ ms on the other"
    assert len(re.findall(f"sparkdl_runner: {named}", capfd.readouterr().err)) == 1
    tags = mlflow.MlflowClient(store).get_run(runner.mlflow_run_id).data.tags
    assert re.match(named, tags["sparkdl_runner.slow_ranks"])
    events = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert (kinds[:2], kinds[-1]) == (["started", "attempt"], "ended")
    assert events[0]["mlflow_run_id"] == runner.mlflow_run_id
    assert {"progress", "slow_ranks"} <= set(kinds)
    assert events[-1]["status"] == "finished"

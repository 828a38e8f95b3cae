"""One name, one training: whoever calls it next goes on with it, in one MLflow run."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

from sparkdl_runner import DistributedRunner, LaunchError, RunConfig, WorkerFailedError
from sparkdl_runner.rank.process_identity import started_ticks
from sparkdl_runner.tracking import Tracking, log_metrics
from sparkdl_runner.tracking.run.opening.lease import ALIVE_TAG, Lease

pytestmark = pytest.mark.one_lane


def train(steps: int, fail: bool = False) -> dict[str, Any]:
    for step in range(1, steps + 1):
        log_metrics(step, loss=1 / step)
    if fail:
        raise ValueError("a defect")
    return {"steps": steps}


def train_otherwise() -> object:
    return object()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]) -> str:
    return new_store(tmp_path_factory.mktemp("named"))


@pytest.fixture
def tracking(store: str, request: pytest.FixtureRequest) -> Tracking:
    return Tracking(tracking_uri=store, experiment=request.node.name, report=False)


def runner(tracking: Tracking, name: str = "shop", **settings: Any) -> DistributedRunner:
    config = RunConfig(name=name, tracking=tracking, **settings)
    return DistributedRunner(num_proc=-1, run_config=config)


def hold(client: mlflow.MlflowClient, run_id: str, **fields: Any) -> None:
    """Another driver, which differs from this one in these fields, runs it."""
    lease = Lease()
    lease.own = dataclasses.replace(lease.own, **fields)
    client.update_run(run_id, status="RUNNING")
    for _, name, text in lease.entries():
        client.set_tag(run_id, name, text)


def client_of(tracking: Tracking) -> mlflow.MlflowClient:
    return mlflow.MlflowClient(tracking_uri=tracking.tracking_uri)


def test_a_failed_one_goes_on_and_a_finished_one_is_not_run_again(tracking, capsys):
    first = runner(tracking)
    with pytest.raises(WorkerFailedError):
        first.run(train, steps=3, fail=True)
    second = runner(tracking)
    assert second.run(train, steps=5) == {"steps": 5}
    assert second.mlflow_run_id == first.mlflow_run_id
    history = client_of(tracking).get_metric_history(str(second.mlflow_run_id), "loss")
    assert sorted(point.step for point in history) == [1, 2, 3, 4, 5]
    third = runner(tracking)
    capsys.readouterr()
    assert third.run(train, steps=9) == {"steps": 5}
    assert third.mlflow_run_id == first.mlflow_run_id
    assert "finished at" in (told := capsys.readouterr().out)
    assert "This call asks for another training: 'steps' was 5 and is now 9." in told
    assert "rerun_finished" in told
    run_id = str(first.mlflow_run_id)
    client_of(tracking).update_run(run_id, status="RUNNING")
    assert runner(tracking).run(train, steps=5) == {"steps": 5}, "its driver died at the very end"
    assert "another training" not in capsys.readouterr().out
    assert client_of(tracking).get_run(run_id).info.status == "FINISHED"
    with pytest.raises(LaunchError, match=r"'shop' trains test_named_trainings\.train .*otherwise"):
        runner(tracking).run(train_otherwise)
    anew = runner(tracking, rerun_finished=True)
    assert anew.run(train, steps=2) == {"steps": 2}
    assert anew.mlflow_run_id != first.mlflow_run_id
    assert runner(tracking).run(train, steps=3) == {"steps": 2}


def test_what_json_cannot_hold_is_not_returned_again(tracking, capsys):
    assert type(runner(tracking).run(train_otherwise)) is object
    assert runner(tracking).run(train_otherwise) is None
    assert "its value (object) was not kept" in capsys.readouterr().out


def test_two_at_once(tracking):
    """The one that runs on this host is seen at once; one elsewhere, when its lease is renewed."""
    training = runner(tracking)
    with pytest.raises(WorkerFailedError):
        training.run(train, steps=1, fail=True)
    run_id, client = str(training.mlflow_run_id), client_of(tracking)

    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = started_ticks(other.pid)
    hold(client, run_id, pid=other.pid, started_ticks=ticks, since=1000000000)
    sentence = (
        rf"'shop' runs already, in MLflow run {run_id}: the driver with process id {other.pid} on "
        r"host \S+ runs it since 2001-09-09 01:46:40 UTC"
    )
    with pytest.raises(LaunchError, match=sentence):
        runner(tracking).run(train, steps=1)
    other.communicate()
    assert runner(tracking).run(train, steps=1) == {"steps": 1}, "its driver is gone"


def test_a_lease_elsewhere_is_waited_for_until_it_is_renewed_or_over(tracking, monkeypatch):
    from sparkdl_runner.tracking.run.opening import named

    training = runner(tracking)
    with pytest.raises(WorkerFailedError):
        training.run(train, steps=1, fail=True)
    run_id, client = str(training.mlflow_run_id), client_of(tracking)
    hold(client, run_id, hostname="far-away", since=1000000000)
    moves = iter([time.time() + 1, None])

    def sleep(_: float) -> None:
        if (at := next(moves)) is not None:
            client.set_tag(run_id, ALIVE_TAG, f"{at:.0f}")

    # Of this module alone: other threads of the process sleep as well.
    clock = SimpleNamespace(sleep=sleep, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(named, "time", clock)
    with pytest.raises(LaunchError, match="on host far-away runs it since 2001"):
        runner(tracking).run(train, steps=1)

    def expire(_: float) -> None:
        client.set_tag(run_id, ALIVE_TAG, f"{time.time() - 100_000:.0f}")

    clock.sleep = expire
    assert runner(tracking).run(train, steps=1) == {"steps": 1}


def test_of_two_that_begin_together_the_first_goes_on(tracking):
    from sparkdl_runner.tracking.run.opening.named import NamedRun, Work

    work = Work.of(train)
    both = [NamedRun(tracking, "shop", work, rerun_finished=False) for _ in range(2)]
    assert both[0].run is both[1].run is None
    # As one on another host: this process could not be two drivers.
    both[0].lease.own = dataclasses.replace(both[0].lease.own, hostname="far-away")
    opened = both[0].open()
    with pytest.raises(LaunchError, match=r"'shop' runs already.*far-away"):
        both[1].open()
    assert NamedRun._search(both[0])[0].info.run_id == opened.run.info.run_id
    assert len(NamedRun._search(both[0])) == 1


def test_without_mlflow_it_is_said_what_a_name_needs(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("sparkdl_runner.launch.driver.mlflow_run.is_set_up", lambda **_: False)
    with pytest.raises(
        LaunchError, match=r"'shop', which an MLflow run keeps.*MLFLOW_TRACKING_URI"
    ):
        DistributedRunner(num_proc=-1, run_config=RunConfig(name="shop")).run(train, steps=1)

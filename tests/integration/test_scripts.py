"""Scripts as ranks: on this host in place, on Spark from a copy, and from the command line."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl_runner import DistributedRunner, HorovodRunner, RunConfig, WorkerFailedError
from sparkdl_runner.cli import main
from sparkdl_runner.errors import RunnerError
from sparkdl_runner.tracking import Tracking

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]
LIGHT = pytest.mark.usefixtures("light_ranks")

TRAIN = """
import argparse
import os
import sys
import time
from pathlib import Path

import beside

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--exit", type=int)
    arguments = parser.parse_args()
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    rows = Path("rows.csv").read_text().split(",")
    print(f"rank {rank} of {size}: {arguments.epochs} epochs of {len(rows)} rows, {beside.NAME}")
    if arguments.exit is not None:
        if rank == "1":
            sys.exit(arguments.exit)
        time.sleep(600)
    Path(f"weights-{rank}.bin").write_bytes(bytes(2000))

if __name__ == "__main__":
    main()
"""
ALLREDUCE = """
import sys
import mlflow
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
mlflow.log_metric("ranks", total.item())
print("sum", total.item(), *sys.argv)
dist.destroy_process_group()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "allreduce.py").write_text(ALLREDUCE)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "rows.csv").write_text("1,2,3")
    (tmp_path / ".env").write_text("TOKEN=x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def temporary() -> Iterator[Path]:
    """A folder for temporary files, among which no copy is left. Other test processes have some."""
    folder = Path(tempfile.mkdtemp())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    assert not list(folder.glob("sparkdl_runner-" + "?" * 32))
    shutil.rmtree(folder)


def test_a_script_of_torchs_is_one_mlflow_run_of_its_name(
    project: Path, capfd: Any, new_store: Callable[[Path], str]
) -> None:
    import mlflow

    store = new_store(project)
    tracking = Tracking(tracking_uri=store, system_metrics=False, report=False)
    runner = DistributedRunner(num_proc=-2, run_config=RunConfig(tracking=tracking))
    assert runner.run_script("allreduce.py", ["--token", "hush-hush"]) is None
    lines = capfd.readouterr().out.splitlines()
    for rank in (0, 1):
        assert f"[rank {rank}] sum 2.0 allreduce.py --token hush-hush" in lines
    run = mlflow.MlflowClient(tracking_uri=store).get_run(runner.mlflow_run_id)
    assert run.info.run_name == "allreduce-1"
    assert run.data.tags["sparkdl_runner.launch.script"] == "allreduce.py"
    assert run.data.tags["mlflow.source.name"] == "allreduce.py"
    assert run.data.tags["sparkdl_runner.script_args"] == "--token '[redacted]'"
    assert run.data.metrics == {"ranks": 2.0}


@LIGHT
def test_ranks_of_this_host_run_a_script_where_it_is(project: Path, capfd: Any) -> None:
    HorovodRunner(np=-2).run_script("train.py", ["--epochs", "3"])
    assert "[rank 1] rank 1 of 2: 3 epochs of 3 rows, beside" in capfd.readouterr().out
    assert (project / "weights-0.bin").stat().st_size == 2000
    with pytest.raises(WorkerFailedError, match=r"train\.py ended with exit code 2") as caught:
        HorovodRunner(np=-1).run_script("train.py", ["--epochs", "three"])
    assert caught.value.output_tail[-1] == (
        "train.py: error: argument --epochs: invalid int value: 'three'"
    )
    assert caught.value.__cause__.exit_code == 2


def test_a_scripts_folder_travels_to_ranks_on_spark(
    project: Path,
    temporary: Path,
    spark: Any,
    light_spark_ranks: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
) -> None:
    monkeypatch.setitem(spark.sparkContext.environment, "TMPDIR", str(temporary))
    runner = HorovodRunner(np=2, driver_log_verbosity="all")
    runner.run_script("train.py", ["--epochs", "3"], files=["*.csv"])
    told = capfd.readouterr()
    assert "train.py travels to the ranks with its folder: 4 files, 1." in told.err
    assert "Left out, as files of secrets: .env." in told.err
    for rank in (0, 1):
        assert f"[rank {rank}] rank {rank} of 2: 3 epochs of 3 rows, beside" in told.out
        assert f"which is deleted now: weights-{rank}.bin (2.0 KB). Give it a path" in told.out
    assert not list(project.glob("weights-*"))
    # Rank 0 is killed in its sleep, and its copy goes as well.
    with pytest.raises(WorkerFailedError, match=r"train\.py ended with exit code 3") as caught:
        runner.run_script("train.py", ["--exit", "3"], files=["rows.csv"])
    assert (caught.value.rank, caught.value.__cause__.exit_code) == (1, 3)


@LIGHT
def test_a_script_from_the_command_line_and_by_the_train_job(project: Path, capfd: Any) -> None:
    environment = dict(os.environ)
    try:
        own = ["--np", "-1", "--backend", "horovod"]
        assert main(["run", "train.py", *own, "--", "--epochs", "3"]) == 0
        assert main(["run", "-m", "train", *own, "--", "--epochs", "--", "4"]) == 2
        settings = "{script: train.py, args: [--epochs, '5'], num_proc: -1, backend: horovod}"
        (project / "train.yaml").write_text(settings)
        assert main(["train", "--config", "train.yaml"]) == 0
    finally:
        os.environ.clear()
        os.environ.update(environment)
    told = capfd.readouterr()
    for epochs in (3, 5):
        assert f"[rank 0] rank 0 of 1: {epochs} epochs of 3 rows, beside" in told.out
    assert "returned None" not in told.out
    assert "raised ScriptExitedError: train ended with exit code 2" in told.err


def test_a_script_cannot_be_run_inside_of_a_rank(project: Path, light_ranks: None) -> None:
    (project / "nested.py").write_text(
        "from sparkdl_runner import DistributedRunner\n"
        "DistributedRunner(num_proc=-1).run_script('train.py')\n"
    )
    with pytest.raises(RunnerError, match="was called inside rank 0 of another run"):
        HorovodRunner(np=-1).run_script("nested.py")

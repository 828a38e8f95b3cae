"""Each framework as its page shows it, on Spark and without: undisturbed, and with a rank lost.

What runs are the functions of ``docs/frameworks.md``. ``make frameworks`` installs the frameworks.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from spark_sessions import session_on

from docs_blocks import ROOT, blocks_of
from sparkdl_runner import DistributedRunner, RunConfig, WorkerFailedError, current_world
from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter
from sparkdl_runner.examples.digits import frames
from sparkdl_runner.tracking import Tracking
from training_tables import converter_of, write_table

FRAMEWORKS = ROOT / "build" / "frameworks"
PAGE = ROOT / "docs" / "frameworks.md"
EXAMPLES = [one for one in blocks_of(PAGE) if one.kind == "python frameworks"]
MOST_LINES = 40
STEPS, STEPS_PER_EPOCH = 66, 22
DIES_AFTER = 35
SAVED = DIES_AFTER // 10 * 10
# Logged after so many steps by the examples, which count from 0 or from 1.
POINTS = {
    "lightning": ("lightning/loss", range(4, STEPS, 5)),
    "lightning_sharded": ("sharded/loss", range(4, STEPS, 5)),
    "fabric": ("fabric/loss", range(10, STEPS, 10)),
    "accelerate": ("accelerate/loss", range(10, STEPS, 10)),
    "transformers": ("loss", range(5, STEPS, 5)),
    "keras": ("loss", range(3)),
}
Train = Callable[[SparkDatasetConverter, str], float]

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]


def functions() -> dict[str, Any]:
    """The functions of the page, which travel by value as a notebook's do."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in EXAMPLES:
        kept = (ast.Import, ast.ImportFrom, ast.FunctionDef)
        body = [node for node in ast.parse(block.text).body if isinstance(node, kept)]
        exec(compile(ast.Module(body, []), str(block), "exec"), names)
    return {name: value for name, value in names.items() if name in POINTS}


TRAIN = functions()


@pytest.fixture(autouse=True)
def _frameworks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks find what the driver finds, on Spark too."""
    if not (FRAMEWORKS / "lightning").exists():
        pytest.fail("build/frameworks has no packages: run make frameworks.")
    monkeypatch.syspath_prepend(str(FRAMEWORKS))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frameworks")


@pytest.fixture(scope="module")
def digits(sessions: dict, home: Path) -> SparkDatasetConverter:
    spark = session_on(sessions, "local[2]")
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, (home / "data").as_uri())
    return make_spark_converter(frames(spark)["train_data"])


class Store:
    """The MLflow store of these tests, and the runs that drivers have opened in it."""

    def __init__(self, uri: str) -> None:
        # Ranks write as well, and on a busy machine they wait for one another.
        self.uri = f"{uri}?timeout=60"
        self.client = MlflowClient(self.uri)
        self.runs: set[str] = set()

    def config(self) -> RunConfig:
        tracking = Tracking(tracking_uri=self.uri, experiment="digits", report=False)
        return RunConfig(max_restarts=1, restart_backoff_seconds=0.1, tracking=tracking)

    def tell_when_saved_points_are_there(
        self, runner: DistributedRunner, name: str, mark: Path
    ) -> None:
        """Makes a file once the points are there that the next attempt does not log again."""
        metric, steps = POINTS[name]
        wanted = {0} if name == "keras" else {step for step in steps if step <= SAVED}
        while not mark.exists():
            time.sleep(0.2)
            if runner.mlflow_run_id is not None:
                points = self.client.get_metric_history(runner.mlflow_run_id, metric)
                if wanted <= {point.step for point in points}:
                    mark.touch()

    def check(self, run_id: str, names: Sequence[str]) -> None:
        """Checks that no run was opened beside, and that each point is there, and once."""
        self.runs.add(run_id)
        experiments = [one.experiment_id for one in self.client.search_experiments()]
        assert {one.info.run_id for one in self.client.search_runs(experiments)} == self.runs
        assert self.client.get_run(run_id).info.status == "FINISHED"
        for metric, steps in map(POINTS.__getitem__, names):
            points = self.client.get_metric_history(run_id, metric)
            assert [point.step for point in points] == list(steps), metric


@pytest.fixture(scope="module")
def store(home: Path, new_store: Callable[[Path], str]) -> Store:
    return Store(new_store(home))


@pytest.fixture(scope="module")
def undisturbed(digits: SparkDatasetConverter, home: Path, store: Store) -> dict[str, float]:
    """The last loss of each framework, of two ranks on Spark that train with one after another."""

    def train_all(train: dict[str, Train], digits: SparkDatasetConverter, folder: str) -> Any:
        import torch.distributed as dist

        losses = {}
        for name, train_one in train.items():
            losses[name] = train_one(digits, f"{folder}/{name}")
            if dist.is_initialized():
                dist.destroy_process_group()
        return losses

    runner = DistributedRunner(num_proc=2, run_config=store.config())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FRAMEWORKS))
        losses = runner.run(train_all, TRAIN, digits, f"{home}/undisturbed")
    # Transformers and Keras give their metrics the same name.
    store.check(runner.mlflow_run_id, [name for name in POINTS if POINTS[name][0] != "loss"])
    return losses


def dies_once(
    train: Train, digits: SparkDatasetConverter, folder: str, may_die: Path
) -> tuple[float, int]:
    """Trains; rank 1 is killed in the middle of the first attempt, once there is a file.

    Returns:
        The last loss, and how many batches rank 0 has taken in the attempt that returned.
    """
    from sparkdl_runner.data.batches.loader import ArrowLoader

    world, iterate, taken = current_world(), ArrowLoader.__iter__, 0

    def count(loader: ArrowLoader) -> Any:
        nonlocal taken
        for batch in iterate(loader):
            if taken == DIES_AFTER and world.attempt == 0 and world.rank == 1:
                deadline = time.monotonic() + 120
                while not may_die.exists() and time.monotonic() < deadline:
                    time.sleep(0.05)  # Rank 0's metrics are on their way.
                os.kill(os.getpid(), signal.SIGKILL)
            taken += 1
            yield batch

    ArrowLoader.__iter__ = count  # type: ignore[method-assign]
    return train(digits, folder), taken


def test_each_example_is_short():
    assert {str(one) for one in EXAMPLES if len(one.text.splitlines()) > MOST_LINES} == set()
    assert TRAIN.keys() == POINTS.keys()


@pytest.mark.parametrize("name", list(POINTS))
def test_a_framework_goes_on_by_its_own_checkpoint(name, digits, home, store, undisturbed, capfd):
    runner = DistributedRunner(num_proc=-2, run_config=store.config())
    may_die = home / f"{name}-may-die"
    telling = threading.Thread(
        target=store.tell_when_saved_points_are_there, args=(runner, name, may_die), daemon=True
    )
    telling.start()
    try:
        loss, taken = runner.run(dies_once, TRAIN[name], digits, f"{home}/{name}", may_die)
    finally:
        may_die.touch()
        telling.join()
    assert "Rank 1 of 2 on host" in (told := capfd.readouterr().err)
    assert "SIGKILL" in told
    assert loss == pytest.approx(undisturbed[name], abs=1e-5)
    saved = STEPS_PER_EPOCH if name == "keras" else SAVED
    # Keras looks at two batches more than it trains on, to learn their shapes.
    assert STEPS - saved <= taken <= STEPS - saved + 2
    store.check(runner.mlflow_run_id, [name])


def test_mlflows_autolog_of_lightning_logs_to_the_run_once(digits, store):
    def train(digits: SparkDatasetConverter) -> None:
        import lightning as L
        import mlflow
        import torch

        class Digits(L.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.network = torch.nn.Linear(64, 10)

            def training_step(self, batch: Any) -> torch.Tensor:
                outputs = self.network(batch["features"])
                loss = torch.nn.functional.cross_entropy(outputs, batch["label"])
                self.log("autologged", loss, on_epoch=True, sync_dist=True)
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), lr=1e-3)

        mlflow.pytorch.autolog(log_models=False)
        with digits.make_torch_dataloader(32, num_epochs=1, seed=1) as loader:
            trainer = L.Trainer(
                accelerator="cpu",
                strategy="ddp",
                devices=2,
                max_epochs=3,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
            )
            trainer.fit(Digits(), loader)

    runner = DistributedRunner(num_proc=-2, run_config=store.config())
    runner.run(train, digits)
    store.check(runner.mlflow_run_id, [])
    points = store.client.get_metric_history(runner.mlflow_run_id, "autologged")
    assert len(points) == 3 == len({point.step for point in points})
    assert store.client.get_run(runner.mlflow_run_id).data.params["epochs"] == "3"


def validated(data: SparkDatasetConverter, limits: Sequence[float]) -> list[list[list[int]]]:
    """For each ``limit_val_batches``, the rows of the validations, without the sanity check."""
    import lightning as L
    import torch

    class Line(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.rows: list[list[int]] = []

        def training_step(self, batch: Any) -> torch.Tensor:
            return self.layer(batch["x"][:, None]).square().mean()

        def on_validation_epoch_start(self) -> None:
            self.rows.append([])

        def validation_step(self, batch: Any) -> None:
            self.rows[-1] += batch["id"].tolist()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    found, size = [], current_world().size
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    with (
        data.make_torch_dataloader(20, num_epochs=1) as training,
        data.make_torch_dataloader(20, num_epochs=1, shuffle=False, tail="uneven") as validation,
    ):
        for limit in limits:
            trainer = L.Trainer(
                accelerator="cpu",
                strategy="ddp",
                devices=size,
                max_epochs=3,
                limit_train_batches=2,
                limit_val_batches=limit,
                enable_checkpointing=False,
                **quiet,
            )
            trainer.fit(model := Line(), training, validation)
            found.append(model.rows[1:])
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_validation_of_lightning_has_all_rows_or_the_same_ones(ranks, tmp_path):
    rows = np.arange(300)
    write_table(tmp_path, {"id": rows, "x": rows.astype(np.float32)})
    runner = DistributedRunner(num_proc=-ranks, run_config=RunConfig(tracking=False))
    found = runner.gather(validated, converter_of(tmp_path), [1.0, 3])
    for validation in zip(*(of_rank for of_rank, _ in found), strict=True):
        assert sorted(row for part in validation for row in part) == rows.tolist()
    for _, (first, second, third) in found:
        assert first == second == third
        assert len(first) == 60


ACCELERATED = """
import json
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

def main():
    accelerator = Accelerator()
    set_seed(0)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for rows, labels in loader:
        loss = torch.nn.functional.mse_loss(model(rows), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    found = accelerator.gather(loss.detach().reshape(1)).tolist()
    if accelerator.is_main_process:
        with open(sys.argv[1], "w") as file:
            json.dump([accelerator.num_processes, found, accelerator.mixed_precision], file)

if __name__ == "__main__":
    main()
"""


def test_a_script_for_accelerate_launch_runs_as_under_it(tmp_path):
    script, there = tmp_path / "train.py", tmp_path / "there.json"
    script.write_text(ACCELERATED)
    # On CPUs its launcher starts several processes by MPI only.
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--mixed_precision=bf16")
    home = {"HF_HOME": str(tmp_path), "PYTHONPATH": str(FRAMEWORKS)}
    command = [sys.executable, *launch, str(script), str(there)]
    subprocess.run(command, check=True, env={**os.environ, **home})
    flags = {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "bf16"}
    config = RunConfig(tracking=False, environment=flags)
    for ranks in (1, 2):
        here = [str(tmp_path / f"here-{ranks}.json")]
        DistributedRunner(num_proc=-ranks, run_config=config).run_script(str(script), here)
    alone, both = (json.loads((tmp_path / f"here-{ranks}.json").read_text()) for ranks in (1, 2))
    assert alone == json.loads(there.read_text())
    assert (both[0], len(both[1]), both[2]) == (2, 2, "bf16")


def test_devices_that_disagree_with_the_world_are_refused_in_a_sentence():
    def train() -> None:
        import lightning
        from lightning.pytorch.demos.boring_classes import BoringModel

        trainer = lightning.Trainer(accelerator="cpu", strategy="ddp", devices=4, logger=False)
        trainer.fit(BoringModel())

    with pytest.raises(WorkerFailedError) as raised:
        DistributedRunner(num_proc=-2, run_config=RunConfig(tracking=False)).run(train)
    assert "does not match the world size (2)" in str(raised.value.__cause__)
    assert "devices=int(os.environ['LOCAL_WORLD_SIZE']) (ranks of a host, here 2)" in str(
        raised.value
    )


def test_lightning_as_it_is_written_for_torch_distributor():
    def train() -> tuple[int, ...]:
        import lightning
        from lightning.pytorch.demos.boring_classes import BoringModel

        trainer = lightning.Trainer(
            accelerator="cpu",
            strategy="ddp",
            devices=1,
            num_nodes=2,
            max_steps=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(BoringModel())
        places = trainer.world_size, trainer.global_rank, trainer.local_rank, trainer.node_rank
        return trainer.global_step, *places

    config = RunConfig(tracking=False, node_view="task")
    found = DistributedRunner(num_proc=-2, run_config=config).gather(train)
    assert found == [(2, 2, rank, 0, rank) for rank in (0, 1)]

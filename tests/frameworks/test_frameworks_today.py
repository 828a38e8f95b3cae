"""The libraries of ``docs/frameworks.md`` that need today's Arrow, as that page shows them.

Their models are small and their weights random. Each trains as two ranks here and, in part, on
Spark, and goes on by its own checkpoint when a rank is lost.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from docs_blocks import ROOT, blocks_of
from sparkdl_runner import DistributedRunner, RunConfig, current_world
from sparkdl_runner.data import SparkDatasetConverter, make_spark_converter
from sparkdl_runner.examples.digits import frames
from sparkdl_runner.tracking import Tracking

Train = Callable[..., float]
MOST_LINES = 45
BLOCKS = [
    block
    for block in blocks_of(ROOT / "docs" / "frameworks.md")
    if block.kind in ("python frameworks", "python today")
]


class Page:
    """The page's functions, which travel by value as a notebook's do, and its tables."""

    def __init__(self, spark: Any) -> None:
        self.names: dict[str, Any] = {"__name__": "page"}
        kept = (ast.Import, ast.ImportFrom, ast.FunctionDef)
        for block in BLOCKS:
            body = [
                node
                for node in ast.parse(block.text).body
                if isinstance(node, kept)
                or (block.kind == "python today" and isinstance(node, ast.Assign))
            ]
            self.names |= {"spark": spark}
            exec(compile(ast.Module(body, []), str(block), "exec"), self.names)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frameworks")


@pytest.fixture(scope="module")
def page(spark: Any, home: Path) -> Page:
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, (home / "data").as_uri())
    return Page(spark)


@pytest.fixture(scope="module")
def digits(page: Page, spark: Any) -> SparkDatasetConverter:
    return make_spark_converter(frames(spark)["train_data"])


class Store:
    """The MLflow store of a test, and the runs that drivers have opened in it."""

    def __init__(self, uri: str) -> None:
        self.uri = f"{uri}?timeout=60"
        self.client = MlflowClient(self.uri)
        self.runs: set[str] = set()

    def runner(self, num_proc: int = -2) -> DistributedRunner:
        tracking = Tracking(tracking_uri=self.uri, experiment="today", report=False)
        config = RunConfig(
            max_restarts=1,
            restart_backoff_seconds=0.1,
            tracking=tracking,
            environment={"DS_ACCELERATOR": "cpu"},
        )
        return DistributedRunner(num_proc=num_proc, backend="torch", run_config=config)

    def steps(self, run_id: str | None, metric: str) -> list[int]:
        """The steps of a run's points, once it is sure that no other run was opened beside it."""
        assert run_id is not None
        self.runs.add(run_id)
        experiments = [one.experiment_id for one in self.client.search_experiments()]
        assert {one.info.run_id for one in self.client.search_runs(experiments)} == self.runs
        assert self.client.get_run(run_id).info.status == "FINISHED"
        return [point.step for point in self.client.get_metric_history(run_id, metric)]


@pytest.fixture
def store(tmp_path: Path, new_store: Callable[[Path], str]) -> Store:
    return Store(new_store(tmp_path))


def dies_once(train: Train, where: str, dies_after: int, *arguments: Any) -> tuple[float, int]:
    """Trains; rank 1 is killed in the first attempt, in a method that each step calls once.

    Returns:
        The last loss, and how many steps the attempt that returned has taken.
    """
    module, of, name = where.rsplit(".", 2)
    owner, world, taken = getattr(importlib.import_module(module), of), current_world(), 0
    method = getattr(owner, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > dies_after and (world.attempt, world.rank) == (0, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)

    setattr(owner, name, count)
    return train(*arguments), taken


def ddp(digits: SparkDatasetConverter) -> float:
    """Trains as the page's function ``deepspeed`` does, with torch and without DeepSpeed."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    hidden = [torch.nn.Linear(64, 64), torch.nn.ReLU()]
    network = torch.nn.Sequential(*hidden, torch.nn.Linear(64, 10))
    model = torch.nn.parallel.DistributedDataParallel(network)
    # "Adam" is AdamW to DeepSpeed.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with digits.make_torch_dataloader(32, num_epochs=1, seed=1) as loader:
        while loader.epoch < 3:
            for batch in loader:
                outputs = model(batch["features"])
                loss = torch.nn.functional.cross_entropy(outputs, batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    dist.destroy_process_group()
    return loss.item()


@pytest.fixture(scope="module")
def plain_losses(digits: SparkDatasetConverter) -> list[float]:
    runner = DistributedRunner(num_proc=-2, run_config=RunConfig(tracking=False))
    return runner.gather(ddp, digits)


def test_each_example_is_short():
    assert {str(one) for one in BLOCKS if len(one.text.splitlines()) > MOST_LINES} == set()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_trains_as_torch_does(stage, page, digits, home, store, plain_losses):
    runner = store.runner()
    losses = runner.gather(page["deepspeed"], digits, f"{home}/zero-{stage}", stage)
    assert losses == pytest.approx(plain_losses, abs=1e-4)
    assert store.steps(runner.mlflow_run_id, "deepspeed/loss") == list(range(10, 66, 10))


def test_deepspeed_goes_on_by_its_own_checkpoint(page, digits, home, store, plain_losses, capfd):
    runner = store.runner()
    engine = "deepspeed.runtime.engine.DeepSpeedEngine.step"
    arguments = page["deepspeed"], engine, 35, digits, f"{home}/deepspeed", 3
    (loss, taken), _ = runner.gather(dies_once, *arguments)
    assert "Rank 1 of 2 on host" in (told := capfd.readouterr().err)
    assert "SIGKILL" in told
    assert loss == pytest.approx(plain_losses[0], abs=1e-4)
    assert taken == 66 - 30
    steps = store.steps(runner.mlflow_run_id, "deepspeed/loss")
    assert len(steps) == len(set(steps))


TRAINERS = {
    "fine_tune": ("texts", (False,)),
    "fine_tune_by_lora": ("texts", (True,)),
    "embed": ("pairs", ()),
}


@pytest.mark.parametrize("name", list(TRAINERS))
def test_a_trainer_goes_on_by_its_own_checkpoint(name, page, home, store, capfd):
    table, flags = TRAINERS[name]
    train, rows = page[name.removesuffix("_by_lora")], page[table]
    on_spark = store.runner(2)
    undisturbed = on_spark.run(train, rows, f"{home}/{name}-on-spark", *flags)
    assert store.steps(on_spark.mlflow_run_id, "loss") == [2, 4, 6, 8]
    here = store.runner()
    step = "transformers.trainer.Trainer.training_step"
    arguments = train, step, 6, rows, f"{home}/{name}", *flags
    (loss, taken), _ = here.gather(dies_once, *arguments)
    assert "SIGKILL" in capfd.readouterr().err
    assert loss == pytest.approx(undisturbed, abs=1e-5)
    assert taken == 8 - 4
    steps = store.steps(here.mlflow_run_id, "loss")
    assert steps[-1] == 8
    assert len(steps) == len(set(steps))


def test_todays_transformers_train_as_the_page_shows(page, digits, home, store):
    runner = store.runner()
    runner.run(page["transformers"], digits, f"{home}/transformers")
    assert store.steps(runner.mlflow_run_id, "loss") == list(range(5, 66, 5))


def by_deepspeed(train: Train, *arguments: Any) -> float:
    """Trains with another argument of TRL's configuration, which is one of Transformers'."""
    import trl

    settings = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    trl.SFTConfig = functools.partial(trl.SFTConfig, deepspeed=settings)
    return train(*arguments)


def test_a_trainer_of_transformers_takes_deepspeed(page, home, store):
    losses = []
    for name, begin in (("plain", ()), ("by-deepspeed", (by_deepspeed,))):
        runner = store.runner()
        call = *begin, page["fine_tune"], page["texts"], f"{home}/{name}", False
        losses.append(runner.run(*call))
        assert store.steps(runner.mlflow_run_id, "loss") == [2, 4, 6, 8]
    assert losses[1] == pytest.approx(losses[0], abs=1e-3)

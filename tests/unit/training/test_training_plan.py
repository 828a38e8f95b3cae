"""A training by a plan, in one rank: its trainer, its loaders, and the value of rank 0."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn

from sparkdl_runner.training.description.options import TrainingPlan, columns_of
from sparkdl_runner.training.description.plan import train
from sparkdl_runner.training.loop.early_stopping import EarlyStopping

SGD = partial(torch.optim.SGD, lr=0.1)


class Data:
    """Two batches of two columns. Notes how they were read."""

    def __init__(self) -> None:
        self.read: list[dict[str, Any]] = []

    @contextmanager
    def make_torch_dataloader(self, **reading: Any) -> Any:
        self.read.append(reading)
        batch = {"x": torch.ones(4, 2), "y": torch.zeros(4, 1), "w": torch.ones(4)}
        yield [batch, batch]


def plan(**changes: Any) -> TrainingPlan:
    given = {"feature_cols": ["x"], "label_cols": ["y"], "loss": nn.functional.mse_loss}
    return TrainingPlan(**{"model": nn.Linear(2, 1), "optimizer": SGD, **given, **changes})


def test_columns_are_read_once_each() -> None:
    assert columns_of(plan()) == ["x", "y"]
    assert columns_of(plan(feature_cols={"a": "x", "b": ["p", "x"]}, sample_weight_col="w")) == [
        "x",
        "p",
        "y",
        "w",
    ]


def test_a_plan_is_trained_with_its_callbacks_and_reading() -> None:
    train_data, validation_data, seen = Data(), Data(), list[str]()
    both = SimpleNamespace(
        on_step=lambda trainer: seen.append(f"step {trainer.step}"),
        on_epoch=lambda trainer: seen.append(f"epoch {len(trainer.history)}"),
    )
    one = SimpleNamespace(on_step=lambda trainer: seen.append("again"))
    made = plan(
        epochs=2,
        callbacks=[both, one],
        batch_size=4,
        seed=3,
        sample_weight_col="w",
        transformation_fn=len,
        nulls="mask",
    )
    trained = train(made, train_data, validation_data)
    assert trained is not None
    assert seen == [
        *("step 1", "again", "step 2", "again", "epoch 1"),
        *("step 3", "again", "step 4", "again", "epoch 2"),
    ]
    assert (trained.steps, trained.weights_step, len(trained.history)) == (4, 4, 2)
    assert load(trained.weights).keys() == {"weight", "bias"}
    reading = {"batch_size": 4, "num_epochs": 1, "columns": ["x", "y", "w"], "transform": len}
    reading["nulls"] = "mask"
    assert train_data.read == [{**reading, "seed": 3, "tail": "drop"}]
    assert validation_data.read == [{**reading, "shuffle": False, "tail": "pad"}]


def test_the_step_of_the_best_weights_is_theirs() -> None:
    stopping = EarlyStopping(metric="loss", mode="max", patience=9)  # The first epoch is best.
    trained = train(plan(epochs=3, early_stopping=stopping), Data())
    assert trained is not None
    assert (trained.steps, trained.weights_step) == (6, 2)


def test_functions_take_the_place_of_the_trainers_own() -> None:
    steps: list[Any] = []

    def step(trainer: Any, batch: Any) -> torch.Tensor:
        steps.append(len(batch["x"]))
        return trainer.model(batch["x"]).sum()

    def fit(trainer: Any, train_loader: Any, validation_loader: Any) -> None:
        steps.append(validation_loader)
        trainer.fit(train_loader[:1], epochs=1)

    assert train(plan(train_step=step, training_fn=fit), Data()) is not None
    assert steps == [None, 4]


def test_checkpoints_keep_the_best_epoch_where_it_is_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def refuse(folder: Any, **options: Any) -> None:
        asked.append((folder, options))
        raise NotADirectoryError

    monkeypatch.setattr("sparkdl_runner.checkpoint.CheckpointManager", refuse)
    stopping = EarlyStopping(metric="val_accuracy", mode="max")
    for changes in ({}, {"early_stopping": stopping}):
        with pytest.raises(NotADirectoryError):
            train(plan(checkpoint_dir="/c", **changes), Data())
    best = {"best_metric": "val_accuracy", "best_mode": "max"}
    assert asked == [("/c", {"every_seconds": 60}), ("/c", {"every_seconds": 60, **best})]

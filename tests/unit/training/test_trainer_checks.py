"""What a training is made of is checked before anything starts."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torchmetrics import MeanSquaredError

from sparkdl_runner.training.description.options import checked
from sparkdl_runner.training.loop.early_stopping import EarlyStopping
from sparkdl_runner.training.loop.learning_rate import LearningRate
from sparkdl_runner.training.loop.metrics import Metrics
from sparkdl_runner.training.loop.module import made
from sparkdl_runner.training.loop.ranks import Ranks

GOOD = {
    "model": nn.Linear(1, 1),
    "optimizer": torch.optim.Adam,
    "loss": nn.functional.mse_loss,
    "feature_cols": ["x"],
    "label_cols": ["y"],
}
ADAM = torch.optim.Adam(nn.Linear(1, 1).parameters())


def test_a_checked_plan_has_each_option_in_one_form():
    plan = checked({**GOOD, "metrics": [MeanSquaredError()], "label_cols": "y", "on_step": len})
    assert (plan.label_cols, list(plan.metrics or {})) == (["y"], ["mean_squared_error"])
    assert (plan.feature_cols, plan.callbacks, plan.warmup_epochs) == (["x"], [], 0.0)
    several = {"label_cols": ["y", "z"], "loss": [len, max], "loss_weights": (1, 0.5)}
    plan = checked({**GOOD, **several, "class_weights": [1, 3]})
    assert (plan.loss, plan.loss_weights) == ({"y": len, "z": max}, {"y": 1, "z": 0.5})
    assert plan.class_weights == {0: 1, 1: 3}
    by_label = {"y": {0: 1.0}, "z": {1: 3.0}}
    assert checked({**GOOD, **several, "class_weights": by_label}).class_weights == by_label


def test_a_list_is_one_for_each_label():
    with pytest.raises(ValueError, match=r"loss is a list of 1, and label_cols has 2 \(y, z\)"):
        checked({**GOOD, "label_cols": ["y", "z"], "loss": [len]})


def test_none_is_a_value_where_it_is_the_default():
    assert checked({**GOOD, "metrics": None}).metrics is None
    for name in ("epochs", "seed", "precision", "label_cols"):
        with pytest.raises((TypeError, ValueError), match=f"{name} is None; expected"):
            checked({**GOOD, name: None})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": 3}, "model is 3; expected a torch.nn.Module, or a function that makes one"),
        ({"optimizer": ADAM}, "optimizer is of type Adam; .*partial.*each rank makes its own"),
        ({"optimizer": "adam"}, "optimizer is 'adam'; expected a function"),
        ({"lr_scheduler": torch.optim.lr_scheduler.StepLR(ADAM, 1)}, "lr_scheduler is of type"),
        ({"loss": nn.MSELoss}, r"loss is the class MSELoss; expected MSELoss\(\)"),
        ({"loss": "mse"}, "loss is 'mse'; expected a function of an output and a label"),
        ({"label_cols": 3}, "label_cols is 3; expected a list of column names"),
        ({"metrics": {"mse": len}}, r"metrics\['mse'\] is .*; expected a metric of torchmetrics"),
        ({"metrics": {"mse": MeanSquaredError}}, "is the class MeanSquaredError"),
        ({"early_stopping": 3}, "early_stopping is 3; expected EarlyStopping"),
        ({"gradient_accumulation_steps": 1.5}, "gradient_accumulation_steps is 1.5"),
    ],
)
def test_other_kinds_are_refused(wrong, message):
    with pytest.raises(TypeError, match=message):
        checked({**GOOD, **wrong})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loss": {"z": nn.MSELoss()}}, "loss names 'z', and label_cols are y"),
        ({"loss": {}}, "loss has nothing for 'y', and label_cols are y"),
        ({"loss_weights": {"z": 1.0}}, "loss_weights names 'z'"),
        ({"class_weights": {"z": {0: 1.0}}}, "class_weights names 'z'"),
        ({"metrics": {"z": {"mse": MeanSquaredError()}}}, "metrics names 'z'"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; expected 1"),
        ({"gradient_clip_norm": 0}, "gradient_clip_norm is 0; expected more than 0"),
        ({"warmup_epochs": -1}, "warmup_epochs is -1; expected 0 or more"),
        ({"precision": "fp16"}, "precision is 'fp16'; expected 'fp32' or 'bf16'"),
        ({"strategy": "fsdp"}, "strategy is 'fsdp'; expected 'ddp' or 'fsdp2'"),
    ],
)
def test_values_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        checked({**GOOD, **wrong})


def test_metrics_of_several_labels_are_named_by_label():
    for labels, more in ((["y", "z"], {}), (["y"], {"y": {"mse": MeanSquaredError()}})):
        metrics = {"mse": MeanSquaredError(), **more}
        with pytest.raises(ValueError, match=r"metrics names 'mse' for all of y.*give them by lab"):
            checked({**GOOD, "label_cols": labels, "metrics": metrics})


def test_a_function_must_make_a_module():
    with pytest.raises(TypeError, match=r"model\(\) returned 3; expected a torch.nn.Module"):
        made(lambda: 3)


def test_early_stopping_follows_from_the_history():
    values = [3.0, 2.0, 1.95, float("nan"), 1.92]
    history = [{"val_loss": value} for value in values]
    stopping = EarlyStopping(patience=3, min_delta=0.1)
    assert [stopping.best_epoch(history[:end]) for end in range(6)] == [-1, 0, 1, 1, 1, 1]
    assert [stopping.is_over(history[:end]) for end in range(1, 6)] == [False] * 4 + [True]
    keeping = EarlyStopping(patience=None)
    assert (keeping.best_epoch(history), keeping.is_over(history)) == (4, False)
    largest = EarlyStopping(mode="max")
    assert largest.best_epoch(history) == 0
    assert EarlyStopping(metric="val_loss").best_epoch([{"val_loss": float("nan")}]) == -1


def test_early_stopping_names_the_metrics_that_there_are():
    with pytest.raises(ValueError, match="watches 'val_loss', and each epoch has loss"):
        EarlyStopping().best_epoch([{"loss": 1.0}])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "low"}, "mode is 'low'"),
        ({"patience": 0}, "patience"),
        ({"min_delta": -1}, "min_"),
    ],
)
def test_early_stopping_refuses_values_out_of_range(wrong, message):
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**wrong)


def test_warm_up_grows_to_the_number_of_ranks_and_leaves_the_scheduler_alone():
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.5)
    rate = LearningRate(
        optimizer, partial(torch.optim.lr_scheduler.StepLR, step_size=1), warmup_epochs=2, size=5
    )
    assert [rate.factor(done) for done in (0, 0.5, 1, 2, 9)] == [1, 2, 3, 5, 5]
    with rate.of_step(2):
        assert optimizer.param_groups[0]["lr"] == 2.5
    optimizer.step()
    rate.end_epoch({"loss": 1.0})
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    alone = LearningRate(optimizer, None, warmup_epochs=0, size=5)
    assert alone.factor(3) == 1


def test_metrics_of_a_rank_without_rows_are_computed_without_a_warning():
    metrics = Metrics({"error": MeanSquaredError()}, ["label"], Ranks())
    metrics.update({"label": (torch.ones(0), torch.ones(0))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics.compute().keys() == {"error"}

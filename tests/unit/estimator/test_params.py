"""Params of TorchEstimator: their values, their text, and what is refused."""

import ast
import importlib.util
import inspect
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from pyspark.ml.param import Param
from pyspark.ml.tuning import ParamGridBuilder
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from sparkdl_runner import RunConfig
from sparkdl_runner.estimator import EarlyStopping, TorchEstimator
from sparkdl_runner.estimator.horovod_names import NOT_NEEDED, RENAMED
from sparkdl_runner.training.description.described import maker_of, pairs, parameters, told_apart
from sparkdl_runner.training.description.maker import Maker

ADAM = partial(torch.optim.Adam, lr=0.1)
PARTS = {"model": nn.Linear(4, 3), "optimizer": ADAM, "loss": nn.functional.cross_entropy}


def made_of(**params):
    return TorchEstimator(**{**PARTS, **params})


class Watching:
    def on_epoch(self, trainer):
        pass


def test_each_param_is_explained_on_one_line_whatever_its_value():
    estimator = made_of(
        model=nn.Sequential(*[nn.Linear(9, 9) for _ in range(500)]),
        run_config=RunConfig(environment={"TOKEN": "secret"}, max_restarts=2),
        early_stopping=EarlyStopping(patience=5),
        metrics={"accuracy": MulticlassAccuracy(3)},
    )
    text = estimator.explainParams()
    lines = text.splitlines()
    assert len(lines) == len(estimator.params)
    assert max(map(len, lines)) < 400
    assert "secret" not in text
    assert "(current: Sequential of 45,000 parameters)" in text
    assert "(current: Adam(lr=0.1))" in text
    assert "(current: EarlyStopping(patience=5))" in text
    assert "(current: RunConfig(max_restarts=2))" in text
    assert "(default: 32)" in estimator.explainParam("batch_size")


def test_setters_and_getters_are_those_of_spark():
    estimator = TorchEstimator().setBatchSize(64).setPredictionCol("p")
    assert estimator.getBatchSize() == 64
    assert estimator.getPredictionCol() == "p"
    for param in estimator.params:
        camel = "".join(part[:1].upper() + part[1:] for part in param.name.split("_"))
        assert callable(getattr(estimator, f"set{camel}")), camel


def test_a_copy_has_values_of_its_own_and_converts_those_of_a_grid():
    estimator = made_of()
    copy = estimator.copy({estimator.epochs: 3, estimator.validation: 0.25})
    assert (copy.getEpochs(), copy.getValidation(), estimator.getEpochs()) == (3, 0.25, 1)
    assert copy.uid == estimator.uid
    with pytest.raises(ValueError, match="epochs is 0; expected 1 or more"):
        estimator.copy({estimator.epochs: 0})


def test_a_grid_goes_over_any_param():
    estimator = made_of()
    grid = ParamGridBuilder().addGrid(estimator.optimizer, [ADAM, torch.optim.SGD])
    grid = grid.addGrid(estimator.gradient_clip_norm, [0.5, 1]).build()
    assert [estimator.copy(one).getGradientClipNorm() for one in grid] == [0.5, 1, 0.5, 1]
    assert all(isinstance(param, Param) for one in grid for param in one)


def test_numpy_numbers_become_pythons():
    import numpy as np

    estimator = TorchEstimator(epochs=np.int64(3), warmup_epochs=np.float32(0.5))
    assert type(estimator.getEpochs()) is int
    assert type(estimator.getWarmupEpochs()) is float


def test_names_may_stand_alone_and_metrics_in_a_list():
    estimator = TorchEstimator(feature_cols="x", label_cols="y", metrics=[MulticlassAccuracy(3)])
    assert (estimator.getFeatureCols(), estimator.getLabelCols()) == (["x"], ["y"])
    assert list(estimator.getMetrics()) == ["multiclass_accuracy"]
    both = MetricCollection({"a": MulticlassAccuracy(3), "b": MulticlassAccuracy(3)})
    assert list(TorchEstimator(metrics=both).getMetrics()) == ["a", "b"]


@pytest.mark.parametrize(
    ("params", "kind", "sentence"),
    [
        ({"num_proc": 1.5}, TypeError, "num_proc is 1.5; expected a whole number"),
        ({"num_proc": True}, TypeError, "num_proc is True; expected a whole number"),
        ({"backend": "nccl"}, ValueError, "backend is 'nccl'; expected 'torch' or 'horovod'"),
        ({"strategy": "fsdp"}, ValueError, "strategy is 'fsdp'; expected 'ddp' or 'fsdp2'"),
        ({"precision": "fp16"}, ValueError, "precision is 'fp16'; expected 'fp32' or 'bf16'"),
        ({"task": "classes"}, ValueError, "task is 'classes'; expected 'regression', 'bin"),
        ({"epochs": 0}, ValueError, "epochs is 0; expected 1 or more"),
        ({"batch_size": 0}, ValueError, "batch_size is 0; expected 1 or"),
        ({"gradient_clip_norm": 0}, ValueError, "clip_norm is 0; expected more than 0"),
        ({"warmup_epochs": float("nan")}, ValueError, "warmup_epochs is nan; expected 0 or"),
        ({"validation": 1.0}, ValueError, "validation is 1.0; a share of the rows is between"),
        ({"validation": [1]}, TypeError, "validation is .1.; expected a share of the rows"),
        ({"label_cols": []}, TypeError, "label_cols is ..; expected a list of column names"),
        ({"label_cols": ["a", "a"]}, ValueError, "label_cols names 'a' twice"),
        ({"feature_cols": {}}, TypeError, "feature_cols is empty"),
        ({"model": "resnet"}, TypeError, "model is 'resnet'; expected a torch.nn.Module"),
        ({"loss": nn.MSELoss}, TypeError, "loss is the class MSELoss; expected MSELoss.., with"),
        ({"loss": "mse"}, TypeError, "loss is 'mse'; expected a function of an output and a label"),
        (
            {"optimizer": torch.optim.Adam(nn.Linear(1, 1).parameters())},
            TypeError,
            "optimizer is of type Adam; .* functools.partial.torch.optim.Adam, lr=….: each rank",
        ),
        (
            {
                "lr_scheduler": torch.optim.lr_scheduler.StepLR(
                    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1), 3
                )
            },
            TypeError,
            "functools.partial.torch.optim.lr_scheduler.StepLR, …",
        ),
        (
            {"metrics": {"f1": MulticlassAccuracy}},
            TypeError,
            r"metrics\['f1'\] is the class .*torchmetrics",
        ),
        ({"metrics": [nn.functional.mse_loss]}, TypeError, "expected a metric of torchmetrics"),
        ({"early_stopping": 3}, TypeError, "early_stopping is 3; expected EarlyStopping"),
        ({"run_config": {}}, TypeError, "run_config is {}; expected RunConfig"),
        (
            {"metrics": {"y": {"f1": nn.MSELoss()}}},
            TypeError,
            r"metrics\['y'\]\['f1'\] is MSELoss.*torchmetrics",
        ),
        ({"loss_weights": "1"}, TypeError, "loss_weights is '1'; expected a dict of numbers"),
        ({"loss_weights": 1}, TypeError, "loss_weights is 1; expected a dict of numbers"),
        ({"loss_weights": {"y": -1}}, ValueError, "loss_weights is -1; expected 0 or more"),
        ({"callbacks": print}, TypeError, "callbacks is .*print.*; expected a list"),
        ({"callbacks": [Watching]}, TypeError, "has neither on_step.trainer. nor on_epoch"),
        ({"callbacks": [object()]}, TypeError, "has neither on_step.trainer. nor on_epoch"),
        ({"pad": {"words": "longest"}}, TypeError, "pad is 'longest'; expected a whole number"),
        ({"train_step": 1}, TypeError, "expected a function, called train_step.trainer, batch"),
    ],
)
def test_a_value_that_cannot_be_is_told_when_it_is_set(params, kind, sentence):
    with pytest.raises(kind, match=sentence):
        TorchEstimator(**params)


def test_an_unknown_param_is_refused():
    with pytest.raises(TypeError, match="has no epoch; did you mean 'epochs'"):
        TorchEstimator(epoch=1)


def test_the_parameters_of_a_run_name_an_optimizers_arguments():
    assert parameters({"optimizer": ADAM, "epochs": 2, "metrics": None}) == {
        "optimizer": "Adam",
        "optimizer.lr": "0.1",
        "epochs": "2",
    }


def test_weights_and_metrics_are_given_by_label_and_callbacks_in_a_tuple():
    estimator = made_of(loss_weights={"a": 1, "b": 0.5}, callbacks=(watching := Watching(),))
    assert estimator.getLossWeights() == {"a": 1, "b": 0.5}
    assert estimator.getCallbacks() == [watching]
    assert made_of(loss_weights=(1, 0)).getLossWeights() == [1, 0]
    by_label = {"a": {"accuracy": MulticlassAccuracy(3)}, "b": {}}
    assert made_of(metrics=by_label).getMetrics() == by_label


def test_losses_are_given_one_for_each_label():
    losses = [nn.functional.cross_entropy, nn.MSELoss()]
    assert made_of(loss=losses).getLoss() == losses
    assert made_of(loss=dict(zip("ab", losses, strict=True))).getLoss() == {
        "a": losses[0],
        "b": losses[1],
    }
    for given in ([nn.MSELoss], {"a": "mse"}):
        with pytest.raises(
            TypeError,
            match=r"expected (MSELoss.., with its brackets|a function of an output and a label)",
        ):
            made_of(loss=given)


def test_every_name_of_horovods_estimator_is_taken_or_told_what_to_write():
    # Horovod's is read, since importing it takes packages that are not everywhere.
    package = Path(importlib.util.find_spec("horovod").origin).parent
    source = ast.parse((package / "spark/torch/estimator.py").read_text())
    classes = {one.name: one for one in source.body if isinstance(one, ast.ClassDef)}
    body = classes["TorchEstimator"].body
    init = next(one for one in body if getattr(one, "name", "") == "__init__")
    theirs = {one.arg for one in [*init.args.args, *init.args.kwonlyargs]}
    theirs -= {"self"}
    own = set(inspect.signature(TorchEstimator).parameters)
    assert len(theirs) > 30
    assert theirs <= own | RENAMED.keys() | NOT_NEEDED.keys()
    assert set(RENAMED.values()) <= own
    assert not own & (RENAMED.keys() | NOT_NEEDED.keys())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "val_batch_size",
            "TorchEstimator has no val_batch_size, as Horovod's has; did you mean 'batch_s",
        ),
        ("store", "has no store, as Horovod's has: data go to the cache folder, and"),
        ("epoch", "TorchEstimator has no epoch; did you mean 'epochs'?"),
    ],
)
def test_a_name_that_is_not_there_is_told_with_what_to_write(given, told):
    for call in (TorchEstimator, TorchEstimator().setParams):
        with pytest.raises(TypeError, match=re.escape(told)):
            call(**{given: 3})


def test_params_of_earlier_names_work_and_say_what_they_are_called_now():
    with pytest.warns(FutureWarning, match="batch_size_per_rank is called batch_size now"):
        estimator = TorchEstimator(batch_size_per_rank=3)
    with pytest.warns(FutureWarning, match="config is called run_config now"):
        estimator.setParams(config=RunConfig(max_restarts=1))
    assert estimator.getRunConfig().max_restarts == 1
    with pytest.warns(FutureWarning, match="batch_size_per_rank is called batch_size now"):
        assert estimator.setBatchSizePerRank(4).getBatchSize() == 4
    with pytest.warns(FutureWarning, match="batch_size_per_rank is called batch_size now"):
        assert estimator.batch_size_per_rank == estimator.batch_size


def test_fits_of_a_grid_are_told_apart_by_the_values_that_differ():
    grid = [
        {"optimizer": partial(torch.optim.SGD, lr=lr, momentum=0.9), "epochs": epochs}
        for lr in (0.1, 0.05)
        for epochs in (1, 2)
    ]
    assert told_apart(grid) == [
        *("lr=0.1 epochs=1", "lr=0.1 epochs=2", "lr=0.05 epochs=1", "lr=0.05 epochs=2")
    ]
    other = [{"optimizer": torch.optim.SGD, "seed": 1}, {"optimizer": torch.optim.Adam, "seed": 1}]
    assert told_apart(other) == ["optimizer=SGD", "optimizer=Adam"]
    assert told_apart([{"epochs": 2}]) == ["epochs=2"], "nothing differs"
    twice = [{"optimizer": partial(len, lr=n), "other": partial(len, lr=n)} for n in (1, 2)]
    assert told_apart(twice)[0] == "optimizer.lr=1 other.lr=1", "whose it is must be said"
    assert told_apart([{}]) == [""]


def test_values_in_a_name_are_short():
    assert pairs({"lr": 0.1 + 0.2, "rate": 1e-5, "layers": 2, "what": "a\nb"}) == (
        "lr=0.3 rate=1e-05 layers=2 what=a b"
    )
    assert len(pairs({"what": "x" * 1000})) == 200


def test_a_network_is_called_by_what_makes_it():
    make = partial(partial(torch.nn.Linear, 2), 3)
    assert maker_of(make) is maker_of(torch.nn.Linear(1, 1)) is torch.nn.Linear
    assert maker_of(Maker(torch.nn.Linear, {})) is torch.nn.Linear

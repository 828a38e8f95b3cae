"""Settings that do not fit together, tasks by loss, and what names a fit's checkpoints."""

import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from pyspark.sql import types as t
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from sparkdl_runner.errors import NotPicklableError
from sparkdl_runner.estimator.estimator import TorchEstimator
from sparkdl_runner.training.description.options import TrainingPlan, checked
from sparkdl_runner.training.fitting.checks import check_rows, check_settings
from sparkdl_runner.training.fitting.columns import check_types
from sparkdl_runner.training.fitting.first_batch import network_of
from sparkdl_runner.training.fitting.fit_identity import checkpoint_folder
from sparkdl_runner.training.fitting.tasks import ignored_class, tasks_of
from sparkdl_runner.training.loop.early_stopping import EarlyStopping

PARTS = {
    "model": nn.Linear(4, 3),
    "optimizer": partial(torch.optim.Adam, lr=0.1),
    "loss": F.cross_entropy,
    "feature_cols": ["x"],
    "label_cols": ["y"],
}


def plan_of(**fields):
    return TrainingPlan(**{**PARTS, **fields})


def check(*, backend="torch", has_validation=False, **fields):
    plan = checked({**PARTS, **fields})
    check_settings(plan, backend=backend, has_validation=has_validation)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"label_cols": ["x"]}, "'x' is in feature_cols and in label_cols"),
        ({"loss": {"z": F.mse_loss}}, "loss names 'z', and label_cols are y"),
        ({"loss": {}}, "loss has nothing for 'y'"),
        ({"task": {"z": "binary"}}, "task names 'z'"),
        ({"strategy": "fsdp2", "backend": "horovod"}, "'fsdp2' needs backend='torch'"),
        ({"early_stopping": EarlyStopping()}, "watches 'val_loss'.*Give validation=0.2"),
        (
            {"early_stopping": EarlyStopping(metric="val_f1"), "has_validation": True},
            "watches 'val_f1', and an epoch has loss, val_loss",
        ),
        ({"metrics": {"accuracy": MulticlassAccuracy(3)}}, "metrics are of validation data"),
        (
            {"metrics": {"a": MulticlassAccuracy(3)}, "label_cols": ["y", "z"]},
            "metrics names 'a' for all of y, z",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_told(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        check(**settings)


def test_what_fits_together_is_let_through():
    check(
        metrics={"accuracy": MulticlassAccuracy(3)},
        early_stopping=EarlyStopping(metric="val_accuracy", mode="max"),
        has_validation=True,
    )


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (0, "There are no rows to train with: the table is empty."),
        (63, "There are 63 rows to train with, and a step takes 64 .* take batch_size=31 or less"),
    ],
)
def test_too_few_rows_are_told(rows, sentence):
    class Converter:
        def __len__(self):
            return rows

        def open(self):
            return SimpleNamespace(columns=[]), None, None

    with pytest.raises(ValueError, match=sentence):
        check_rows(SimpleNamespace(train=Converter(), validation=None), plan_of(), num_proc=-2)


def test_a_function_that_cannot_be_sent_is_named_before_anything_starts():
    lock = threading.Lock()

    def loss(output, label):
        with lock:
            return F.mse_loss(output, label)

    def model():
        with lock:
            return nn.Linear(4, 3)

    with pytest.raises(NotPicklableError, match=r"'lock' of the argument 'loss', a _thread\.lock"):
        check(loss=loss)
    with pytest.raises(NotPicklableError, match=r"'lock' of the argument 'model', a _thread\.lock"):
        check(model=model)


@pytest.mark.parametrize(
    ("loss", "task"),
    [
        (F.cross_entropy, "multiclass"),
        (partial(F.cross_entropy, label_smoothing=0.1), "multiclass"),
        (nn.NLLLoss(), "multiclass"),
        (F.binary_cross_entropy_with_logits, "binary"),
        (nn.BCEWithLogitsLoss(), "binary"),
        (F.mse_loss, "regression"),
        (lambda output, label: (output - label).abs(), "regression"),
    ],
)
def test_the_loss_says_what_outputs_mean(loss, task):
    assert tasks_of(["y"], loss, None) == {"y": task}
    assert tasks_of(["y"], loss, "regression") == {"y": "regression"}


def test_labels_of_lists_are_several_at_once():
    found = tasks_of(["a", "b"], {"a": nn.BCEWithLogitsLoss(), "b": F.mse_loss}, None, ["a"])
    assert found == {"a": "multilabel", "b": "regression"}


def test_the_class_that_a_loss_leaves_out():
    assert ignored_class(F.cross_entropy) == -100
    assert ignored_class(nn.CrossEntropyLoss(ignore_index=-1)) == -1
    assert ignored_class(partial(F.cross_entropy, ignore_index=-7)) == -7
    assert ignored_class(F.mse_loss) is None


def test_a_network_is_a_copy_or_what_a_factory_makes():
    module = nn.Linear(2, 1)
    assert network_of(module) is not module
    state = torch.random.get_rng_state()
    assert network_of(partial(nn.Linear, 2, 1)).in_features == 2
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(TypeError, match="Linear, which cannot be called without arguments"):
        network_of(nn.Linear)
    with pytest.raises(TypeError, match=r"made a int; expected a torch\.nn\.Module"):
        network_of(lambda: 3)
    with pytest.raises(ValueError, match="'weight' has no shape yet"):
        network_of(nn.LazyLinear(3))


def test_a_module_that_cannot_be_copied_is_told_as_the_model():
    module = nn.Linear(2, 1)
    module.lock = threading.Lock()
    with pytest.raises(NotPicklableError, match=r"model is Linear of 3 .*Give a function that"):
        network_of(module)


def data(fingerprint="rows"):
    converter = SimpleNamespace(open=lambda: (SimpleNamespace(fingerprint=fingerprint), None, ""))
    return SimpleNamespace(train=converter, validation=None)


def folder(rows="rows", num_proc=2, **fields):
    return checkpoint_folder(plan_of(checkpoint_dir="/c", **fields), data(rows), num_proc)


def test_checkpoints_are_found_again_by_an_equal_fit_and_by_no_other():
    same = folder()
    assert same == folder(model=nn.Linear(4, 3))  # Other weights to begin with.
    assert same == folder(epochs=9)
    assert same == folder(num_proc=1, batch_size=64)
    others = [
        folder("other rows"),
        folder(seed=1),
        folder(model=nn.Linear(4, 4)),
        folder(optimizer=partial(torch.optim.Adam, lr=0.2)),
        folder(loss=lambda output, label: output - label),
        folder(loss=lambda output, label: output + label),
        folder(num_proc=1),
        folder(nulls="fill"),
    ]
    assert len({same, *others}) == 1 + len(others)
    assert same.startswith("/c/fit-")


def test_a_fit_without_its_parts_says_which():
    with pytest.raises(ValueError, match="model and loss not set: a fit needs model, optimizer"):
        TorchEstimator(optimizer=torch.optim.SGD)._plan()


@pytest.mark.parametrize("kind", [t.DecimalType(10, 2), t.ArrayType(t.DecimalType(10, 2))])
def test_decimals_are_to_be_cast_before_the_fit(kind):
    table = SimpleNamespace(schema=t.StructType([t.StructField("price", kind)]))
    sentence = (
        r"'price' is .*decimal\(10,2\).*: cast it before the fit, as by df.withColumn\('price'"
    )
    for labels in ({}, {"price": "regression"}):
        with pytest.raises(TypeError, match=sentence):
            check_types(table, labels, None, ())
    check_types(table, {"price": "multiclass"}, None, ())  # Classes are cast to whole numbers.

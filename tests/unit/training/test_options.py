"""Each option of a training is described once: all that take it take and refuse the same."""

from __future__ import annotations

import inspect
from dataclasses import MISSING
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_runner import Trainer
from sparkdl_runner.errors import ConfigError
from sparkdl_runner.estimator import TorchEstimator
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.training.description.options import OPTIONS, checked_option

OF_A_FIT = {"num_proc", "backend", "run_config"} | {
    *("predictionCol", "probabilityCol", "rawPredictionCol")
}
OF_A_TRAINER = {"checkpoints", "on_step", "on_epoch"}
PARTS: dict[str, Any] = {
    "model": partial(nn.Linear, 1, 1),
    "optimizer": partial(torch.optim.SGD, lr=0.1),
    "loss": nn.functional.mse_loss,
}
WRITTEN = {
    "num_proc": 1,
    "data": {"train_data": "t"},
    "model": {"class": "torch.nn:Linear", "in_features": 1, "out_features": 1},
    "loss": "torch.nn.functional:mse_loss",
    "optimizer": {"class": "torch.optim:SGD", "lr": 0.1},
}


def test_the_written_signature_of_the_estimator_is_the_description() -> None:
    written = inspect.signature(TorchEstimator).parameters
    assert set(written) == OPTIONS.keys() | OF_A_FIT
    assert {one.default for one in written.values()} == {None}, "None leaves a Param as it is"


def test_the_written_signature_of_the_trainer_is_the_description() -> None:
    written = dict(inspect.signature(Trainer).parameters)
    assert {written.pop(name).default for name in OF_A_TRAINER} == {None}
    assert written.pop("verify_replicas_every_steps").default == 200
    assert set(written) <= OPTIONS.keys()
    for name, one in written.items():
        default = OPTIONS[name].default
        assert one.default == (one.empty if default is MISSING else default), name


def test_params_have_the_text_and_the_default_of_the_description() -> None:
    estimator = TorchEstimator()
    for name, option in OPTIONS.items():
        param = estimator.getParam(name)
        assert param.doc.startswith(option.metadata["text"])
        if option.default in (None, MISSING):
            assert not estimator.isDefined(param)
        else:
            assert estimator.getOrDefault(param) == checked_option(name, option.default)


def test_keys_have_the_text_and_the_default_of_the_description() -> None:
    for name, option in OPTIONS.items():
        if not option.metadata["is_key"]:
            assert name not in TrainSettings.model_fields
            continue
        key = TrainSettings.model_fields[name]
        assert (key.description or "").startswith(option.metadata["text"])
        if option.default not in (None, MISSING, ()):
            assert checked_option(name, key.default) == checked_option(name, option.default)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("label_cols", 3, "label_cols is 3; expected a list of column names."),
        ("label_cols", ["a", "a"], "label_cols names 'a' twice."),
        ("feature_cols", {}, "feature_cols is empty; expected the columns that the model takes."),
        ("warmup_epochs", -1, "warmup_epochs is -1; expected 0 or more, and finite."),
        (
            "gradient_accumulation_steps",
            1.5,
            "gradient_accumulation_steps is 1.5; expected a whole",
        ),
        ("gradient_clip_norm", 0, "gradient_clip_norm is 0; expected more than 0."),
        ("precision", "fp16", "precision is 'fp16'; expected 'fp32' or 'bf16'."),
        ("strategy", "fsdp", "strategy is 'fsdp'; expected 'ddp' or 'fsdp2'."),
        ("sample_weight_col", "", "sample_weight_col is ''; expected a text, such as a column"),
        ("class_weights", 3, "class_weights is 3; expected a dict of numbers by name."),
        ("class_weights", {"z": {0: 1.0}}, "class_weights names 'z', and label_cols are label."),
        ("loss_weights", {"z": 1.0}, "loss_weights names 'z', and label_cols are label."),
        ("loss_weights", {"label": -1}, "loss_weights is -1; expected 0 or more, and finite."),
        ("seed", -1, "seed is -1; expected 0 or more."),
    ],
)
def test_an_error_has_the_same_words_everywhere(
    name: str, value: Any, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from sparkdl_runner.jobs.training.of_model import OfModel

    # torch sets it where an optimizer is made first.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    words = []
    with pytest.raises((TypeError, ValueError)) as raised:
        Trainer(**PARTS, **{name: value})
    words.append(str(raised.value))
    with pytest.raises((TypeError, ValueError)) as raised:
        TorchEstimator(**PARTS, **{name: value})._plan()
    of_spark = f'Invalid param value given for param "{name}". '
    words.append(str(raised.value).removeprefix(of_spark))
    with pytest.raises(ConfigError) as refused:
        OfModel(load(TrainSettings, None, {**WRITTEN, name: value}))
    words.append(str(refused.value).removeprefix("the flags: "))
    assert set(words) == {words[0]}
    assert words[0].startswith(sentence)

"""A training that its settings describe without a function: what they may say, and what not."""

from __future__ import annotations

from contextlib import ExitStack

import cloudpickle
import numpy as np
import pytest
import torch

from sparkdl_runner.errors import ConfigError
from sparkdl_runner.jobs.parsing import load
from sparkdl_runner.jobs.training.of_model import OfModel
from sparkdl_runner.jobs.training.plan_settings import PlanSettings
from sparkdl_runner.jobs.training.settings import TrainSettings
from sparkdl_runner.training.description.options import TrainingPlan
from training_tables import converter_of, write_table

LINEAR = {"class": "torch.nn:Linear", "in_features": 3, "out_features": 2}
ACCURACY = {"class": "torchmetrics.classification:MulticlassAccuracy", "num_classes": 2}
GOOD = {
    "num_proc": 1,
    "data": {"train_data": "t"},
    "model": LINEAR,
    "loss": "torch.nn.functional:cross_entropy",
    "optimizer": {"class": "torch.optim:Adam", "lr": 1e-3},
}


def work(**change) -> OfModel:
    given = {name: one for name, one in {**GOOD, **change}.items() if one is not None}
    return OfModel(load(TrainSettings, None, given))


def plan(drawn=None, **change) -> TrainingPlan:
    return work(**change).arguments(drawn or {})["plan"]


@pytest.fixture(autouse=True)
def _torch_keeps_its_folder(monkeypatch, tmp_path):
    """torch sets this where an optimizer is made first."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def test_every_field_of_a_plan_is_a_setting():
    of_others = {"checkpoint_dir", "task"}  # From checkpoint_url, and by the loss alone.
    assert set(PlanSettings.model_fields) == set(TrainingPlan.__dataclass_fields__) - of_others


def test_a_plan_makes_what_the_settings_name_also_after_its_journey():
    made = plan(
        model=[LINEAR, "torch.nn:ReLU"],
        lr_scheduler={"class": "torch.optim.lr_scheduler:StepLR", "step_size": 2},
        metrics={"accuracy": ACCURACY},
        early_stopping={"patience": 2},
        validation=0.2,
        nulls="mask",
    )
    made = cloudpickle.loads(cloudpickle.dumps(made))
    first, second = made.model(), made.model()
    assert [type(one) for one in first] == [torch.nn.Linear, torch.nn.ReLU]
    assert first[0] is not second[0], "each call makes new layers"
    optimizer = made.optimizer(first.parameters())
    assert optimizer.defaults["lr"] == 1e-3
    assert made.lr_scheduler(optimizer).step_size == 2
    assert made.loss is torch.nn.functional.cross_entropy
    assert type(made.metrics["accuracy"]).__name__ == "MulticlassAccuracy"
    assert made.early_stopping.patience == 2
    assert (made.feature_cols, made.label_cols) == (["features"], ["label"])
    assert made.reading == {"nulls": "mask"}


def test_a_function_of_batches_keeps_its_arguments_and_a_class_is_made_once():
    scores, truth = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    smooth = {"label_smoothing": 0.2}
    expected = torch.nn.functional.cross_entropy(scores, truth, **smooth)
    named = "torch.nn.functional:cross_entropy"
    assert plan(loss={"class": named, **smooth}).loss(scores, truth) == expected
    made = plan(loss={"class": "torch.nn:CrossEntropyLoss", **smooth}).loss
    assert made(scores, truth) == expected
    weight = {"class": "torch:tensor", "data": [1.0, 3.0]}
    weighted = plan(loss={"class": "torch.nn:CrossEntropyLoss", "weight": weight}).loss
    assert weighted.weight.tolist() == [1, 3], "an argument may be a named thing itself"
    several = plan(label_cols=["a", "b"], loss={"a": named, "b": "torch.nn:MSELoss"}).loss
    assert list(several) == ["a", "b"]


def test_a_module_of_ones_own_is_found_beside_the_settings(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(
        "import torch\n\ndef make(hidden: int = 4):\n    return torch.nn.Linear(hidden, 1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plan(model={"class": "own_net:make", "hidden": 7}).model().in_features == 7
    assert plan(model="own_net.py:make").model().in_features == 4


class Masked(torch.nn.Linear):
    def forward(self, words, words_mask):
        return super().forward((words * words_mask).sum(1, keepdim=True))


def test_a_model_that_cannot_be_logged_is_not_to_be_registered(tmp_path):
    rows = {"words": np.ones((16, 2), np.float32), "label": [0, 1] * 8}
    write_table(tmp_path, rows)
    settings = {
        "model": {"class": f"{__name__}:Masked", "in_features": 1, "out_features": 2},
        "feature_cols": ["words"],
        "batch_size": 4,
        "pad": {"words": 2},
    }
    data = {"train_data": converter_of(tmp_path)}
    with ExitStack() as stack:
        assert work(**settings).converted(data, None, stack) == data
        register = {"registered_model_name": "words"}
        with pytest.raises(ConfigError, match=r"takes words_mask, which is no column of a table"):
            work(**settings, tracking=register).converted(data, None, stack)


def test_hyperparameters_are_settings_by_their_place():
    given = {"optimizer.lr": 0.5, "batch_size_per_rank": 7, "early_stopping.patience": 9}
    made = plan(given, optimizer="torch.optim:SGD")
    assert made.optimizer(torch.nn.Linear(1, 1).parameters()).defaults["lr"] == 0.5
    assert made.batch_size == 7
    assert made.early_stopping.patience == 9
    shown = work().parameters(given)
    assert shown["optimizer"] == "torch.optim:Adam"
    assert shown["optimizer.lr"] == 0.5
    assert shown["model.in_features"] == 3
    assert shown["batch_size"] == 7


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"optimizer": "torch.optim.Adam"}, "did you mean 'torch.optim:Adam'?"),
        ({"optimizer": "torch.optim:Adom"}, "has no class or function 'Adom'; did you mean 'Adam"),
        ({"optimizer": "torch.optm:Adam"}, "optimizer: there is no module 'torch.optm' in "),
        (
            {"optimizer": {"class": "torch.optim:Adam", "learning_rate": 1}},
            "optimizer: torch.optim:Adam has no argument 'learning_rate'; there are lr, betas, ",
        ),
        (
            {"optimizer": {"class": "torch.optim:Adam", "params": 1}},
            "multiple values for argument 'params'. It is given the model's parameters first.",
        ),
        (
            {"optimizer": {"class": "torch.optim:Adam", "weight_decay": "x"}},
            "optimizer.weight_decay is 'x'; torch.optim:Adam takes a number there",
        ),
        ({"optimizer": {"clas": "torch.optim:Adam"}}, "optimizer: it has no key class; it should"),
        ({"optimizer": 3}, "optimizer: it is 3; it should be module:name, or {class: module:name"),
        ({"optimizer": None}, "optimizer is missing: a model is trained with one."),
        ({"model": {**LINEAR, "out_features": "2"}}, "model.out_features is '2'; torch.nn:Linear "),
        ({"model": ["torch.nn:Linear"]}, "model.0: torch.nn:Linear(in_features: int, out_fe"),
        ({"model": []}, "model: it is []; it should be module:name"),
        (
            {"loss": {"class": "torch.nn:CrossEntropyLoss", "label_smothing": 1}},
            "loss: torch.nn:CrossEntropyLoss has no argument 'label_smothing'; did you mean 'lab",
        ),
        ({"loss": {"a": "torch.nn:MSELos"}}, "loss.a: torch.nn has no class or function 'MSELos'"),
        (
            {"metrics": {"accuracy": {**ACCURACY, "num_classes": -2}}},
            "metrics.accuracy: torchmetrics.classification:MulticlassAccuracy refuses its argume",
        ),
        (
            {"lr_scheduler": "torch.optim.lr_scheduler:StepLR"},
            "missing a required argument: 'step_size'. It is given the optimizer first.",
        ),
        ({"train_step": "json:dumps"}, "It is given the trainer and the batch first."),
        ({"early_stopping": {"patience": 0}}, "early_stopping: patience is 0; expected 1 or more."),
        ({"epochs": 0}, "the flags: epochs is 0; expected 1 or more."),
        ({"batch_sise": 3}, "there is no key 'batch_sise'; did you mean 'batch_size'?"),
        ({"data": {}}, "data.train_data is missing: the rows to learn from."),
        ({"data": {"train": "t"}}, "data.train_data is missing: the rows to learn from; data has"),
        (
            {"validation": 0.2, "data": {"train_data": "t", "validation_data": "v"}},
            "give either validation or data.validation_data.",
        ),
        ({"function": "a:b"}, "give one of function, script, module, model and example."),
        ({"model": None}, "give one of function, script, module, model and example."),
        (
            {"model": None, "function": "a:b"},
            "optimizer belongs to a training that has a model and no function: give the function",
        ),
        ({"hyperparameters": {"optimizr.lr": 1}}, "optimizr.lr is no setting of the training; did"),
        (
            {"hyperparameters": {"optimizer.rl": 1}},
            "torch.optim:Adam has no argument 'rl'; there a",
        ),
        ({"hyperparameters": {"epochs.x": 1}, "epochs": 3}, "epochs.x leads to nothing: epochs is"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_key(change, sentence):
    with pytest.raises(ConfigError) as raised:
        work(**change)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_a_search_may_draw_is_tried_before_it_begins():
    search = work()
    search.check({"optimizer.lr": [0.1, 0.2], "batch_size": [8, 16]})
    with pytest.raises(ConfigError, match=r"^tune\.search_space\.model\.hiden: model: torch"):
        search.check({"optimizer.lr": [0.1], "model.hiden": [3]})
    with pytest.raises(ConfigError, match=r"search_space\.epochs: epochs is 1.5; expected a whole"):
        search.check({"epochs": [1.5]})


def test_data_of_another_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="data has no argument 'valid_data'; did you mean 'valid"):
        work().check_names(["train_data", "valid_data"], {})

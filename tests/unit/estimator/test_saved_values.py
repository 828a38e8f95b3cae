"""Params as JSON, and back."""

import json
from functools import partial

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl_runner import RunConfig
from sparkdl_runner.estimator import EarlyStopping
from sparkdl_runner.estimator.saved_values import decode, encode
from sparkdl_runner.estimator.trust import is_trusted
from sparkdl_runner.tensors.saved import UntrustedModelError
from sparkdl_runner.tracking import Tracking


def again(value, **options):
    options = {"trust": True, **options}
    return decode("it", json.loads(json.dumps(encode("it", value))), **options)


@pytest.mark.parametrize(
    "value",
    [
        None,
        0.5,
        ["a", {"b": ("c", 1)}, {1: 2.0}],
        torch.optim.Adam,
        nn.functional.cross_entropy,
        EarlyStopping(patience=7, min_delta=0.1),
        RunConfig(max_restarts=2, tracking=Tracking(run_name="mine")),
    ],
)
def test_a_value_with_a_plain_form_comes_back_equal(value, recwarn):
    assert again(value) == value
    assert not recwarn


@pytest.mark.parametrize(
    ("module", "value"),
    [
        ("training.early_stopping", EarlyStopping(patience=7)),
        ("run_config", RunConfig(max_restarts=2)),
    ],
)
def test_settings_are_found_though_their_module_has_moved(module, value):
    saved = encode("it", value)
    saved["object"] = f"sparkdl_runner.{module}:{type(value).__name__}"
    assert decode("it", saved, trust=True) == value


def test_a_partial_is_what_it_holds(recwarn):
    made = again(partial(torch.optim.Adam, lr=0.1, betas=(0.8, 0.9)))
    assert made.func is torch.optim.Adam
    assert made.keywords == {"lr": 0.1, "betas": (0.8, 0.9)}
    assert not recwarn


def test_losses_and_metrics_are_made_again_by_their_arguments(recwarn):
    assert again(nn.CrossEntropyLoss(label_smoothing=0.1)).label_smoothing == 0.1
    assert again(MulticlassAccuracy(7, average="micro")).num_classes == 7
    assert not recwarn


def test_a_module_with_weights_is_pickled_and_opened_only_where_it_is_trusted():
    module = nn.Linear(2, 1)
    with pytest.warns(UserWarning, match="it .Linear of 3 parameters. is saved as a pickle"):
        saved = encode("it", module)
    with pytest.raises(UntrustedModelError, match=r"as a pickle.*trust=True.*SPARKDL_RUNNER_TRUST"):
        decode("it", saved, trust=False)
    assert torch.equal(decode("it", saved, trust=True).weight, module.weight)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (partial(torch.optim.Adam, lr=0.1), "a partial"),
        (torch.optim.Adam, "a name to import"),
        (nn.CrossEntropyLoss(), "an object"),
        (RunConfig(max_restarts=2), "an object"),
        ([{"loss": (1, torch.optim.Adam)}], "a name to import"),
    ],
)
def test_without_trust_only_plain_data_are_read(value, kind):
    saved = json.loads(json.dumps(encode("model", value)))
    with pytest.raises(UntrustedModelError, match=f"model was saved as {kind}, which can run any"):
        decode("model", saved, trust=False)


called = []


def test_a_partial_of_any_function_is_not_made_without_trust():
    reference = {"reference": f"{__name__}:called.append"}
    saved = {"partial": reference, "arguments": ["ran"], "keywords": {}}
    with pytest.raises(UntrustedModelError, match="model was saved as a partial"):
        decode("model", saved, trust=False)
    decode("model", saved, trust=True)()
    assert called.pop() == "ran"


@pytest.mark.parametrize("value", [None, 0.5, True, ["a", {"b": ("c", 1)}, {1: 2.0}]])
def test_plain_data_need_no_trust(value):
    assert again(value, trust=False) == value


def test_the_environment_and_the_earlier_names_say_trust(monkeypatch):
    monkeypatch.delenv("SPARKDL_RUNNER_TRUST", raising=False)
    monkeypatch.delenv("SPARKDL_RUNNER_TRUST_PICKLE", raising=False)
    assert not is_trusted(False)
    assert is_trusted(True)
    with pytest.warns(FutureWarning, match=r"trust_pickle is called trust now"):
        assert is_trusted(False, trust_pickle=True)
    monkeypatch.setenv("SPARKDL_RUNNER_TRUST_PICKLE", "1")
    with pytest.warns(FutureWarning, match=r"_TRUST_PICKLE is called SPARKDL_RUNNER_TRUST now"):
        assert is_trusted(False)
    monkeypatch.setenv("SPARKDL_RUNNER_TRUST", "1")
    assert is_trusted(False)


def test_a_lambda_is_pickled():
    with pytest.warns(UserWarning, match="pickle"):
        saved = encode("loss", lambda output, label: output - label)
    assert decode("loss", saved, trust=True)(3, 1) == 2


def test_secrets_are_not_saved():
    with pytest.warns(UserWarning, match="environment of RunConfig is not saved"):
        saved = encode("run_config", RunConfig(environment={"TOKEN": "secret"}))
    assert "secret" not in json.dumps(saved)


def test_a_file_calls_no_class_but_those_of_settings_and_modules():
    saved = {"object": "subprocess:Popen", "arguments": {"args": ["touch", "/nowhere/x"]}}
    with pytest.raises(ValueError, match="subprocess:Popen is not among the classes"):
        decode("model", saved, trust=True)


def test_a_reference_to_what_is_not_installed_is_told():
    with pytest.raises(ValueError, match=r"loss cannot be made again .* named 'gone'"):
        decode("loss", {"reference": "gone:loss"}, trust=True)


class Folded(nn.Module):
    """Keeps the number of its sizes alone, so the argument cannot be read from its attributes."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = len(sizes)


def test_a_module_that_cannot_be_made_again_is_pickled():
    with pytest.warns(UserWarning, match="is saved as a pickle"):
        saved = encode("it", Folded([1, 2]))
    assert decode("it", saved, trust=True).sizes == 2

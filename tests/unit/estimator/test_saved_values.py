"""Params as JSON, and back."""

import json
from functools import partial

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl_runner import RunConfig
from sparkdl_runner.estimator import EarlyStopping
from sparkdl_runner.estimator.saved_values import UntrustedPickleError, decode, encode
from sparkdl_runner.tracking import Tracking


def again(value, **options):
    options = {"trust_pickle": False, **options}
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


def test_a_partial_is_what_it_holds(recwarn):
    made = again(partial(torch.optim.Adam, lr=0.1, betas=(0.8, 0.9)))
    assert made.func is torch.optim.Adam
    assert made.keywords == {"lr": 0.1, "betas": (0.8, 0.9)}
    assert not recwarn


def test_losses_and_metrics_are_made_again_by_their_arguments(recwarn):
    assert again(nn.CrossEntropyLoss(label_smoothing=0.1)).label_smoothing == 0.1
    assert again(MulticlassAccuracy(7, average="micro")).num_classes == 7
    assert not recwarn


def test_a_module_with_weights_is_pickled_and_opened_only_where_it_is_trusted(monkeypatch):
    module = nn.Linear(2, 1)
    with pytest.warns(UserWarning, match="it .Linear of 3 parameters. is saved as a pickle"):
        saved = encode("it", module)
    with pytest.raises(UntrustedPickleError, match="trust_pickle=True"):
        decode("it", saved, trust_pickle=False)
    opened = decode("it", saved, trust_pickle=True)
    assert torch.equal(opened.weight, module.weight)
    monkeypatch.setenv("SPARKDL_RUNNER_TRUST_PICKLE", "1")
    assert decode("it", saved, trust_pickle=False).in_features == 2


def test_a_lambda_is_pickled():
    with pytest.warns(UserWarning, match="pickle"):
        saved = encode("loss", lambda output, label: output - label)
    assert decode("loss", saved, trust_pickle=True)(3, 1) == 2


def test_secrets_are_not_saved():
    with pytest.warns(UserWarning, match="environment of RunConfig is not saved"):
        saved = encode("config", RunConfig(environment={"TOKEN": "secret"}))
    assert "secret" not in json.dumps(saved)


def test_a_file_calls_no_class_but_those_of_settings_and_modules():
    saved = {"object": "subprocess:Popen", "arguments": {"args": ["touch", "/nowhere/x"]}}
    with pytest.raises(ValueError, match="subprocess:Popen is not among the classes"):
        decode("model", saved, trust_pickle=False)


def test_a_reference_to_what_is_not_installed_is_told():
    with pytest.raises(ValueError, match=r"loss cannot be made again .* named 'gone'"):
        decode("loss", {"reference": "gone:loss"}, trust_pickle=False)


class Folded(nn.Module):
    """Keeps the number of its sizes alone, so the argument cannot be read from its attributes."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = len(sizes)


def test_a_module_that_cannot_be_made_again_is_pickled():
    with pytest.warns(UserWarning, match="is saved as a pickle"):
        saved = encode("it", Folded([1, 2]))
    assert decode("it", saved, trust_pickle=True).sizes == 2

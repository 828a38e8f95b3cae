"""The digits: their network, and what is said where they are not installed."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest
import torch

from sparkdl_runner.examples.digits import read_digits
from sparkdl_runner.examples.digits_training import DigitsNet, evaluate


def test_the_network_makes_ten_scores_of_each_row() -> None:
    assert DigitsNet()(torch.zeros(3, 64)).shape == (3, 10)


def test_the_accuracy_counts_the_rows_of_uneven_batches_and_ranks() -> None:
    scores = torch.eye(4)
    batches = [
        {"features": scores[:3], "label": torch.tensor([0, 1, 0])},
        {"features": scores[3:], "label": torch.tensor([3])},
    ]
    # Another rank was right once in six rows.
    of_both = evaluate(torch.nn.Identity(), batches, lambda mine: mine + torch.tensor([1.0, 6.0]))
    assert of_both == 0.4


@pytest.mark.parametrize("found", [None, ModuleSpec("sklearn", None)])
def test_digits_that_are_not_installed_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, found: ModuleSpec | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        read_digits()

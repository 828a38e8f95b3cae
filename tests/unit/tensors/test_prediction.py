"""A network predicts alike in batches of any size, and what its outputs mean has Spark's names."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Output, checked, prediction_columns
from sparkdl_runner.tensors.pandas_values import arrow_of
from sparkdl_runner.tensors.predictor import Description, Predictor, threads

torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3)).eval()
DESCRIPTION = Description(
    inputs=Inputs({"": ("a", "b")}),
    columns=(Column(name="a"), Column(name="b")),
    outputs={"y": Output("multiclass")},
)


@given(rows=st.integers(0, 20), batch_size=st.integers(1, 25))
def test_predictions_do_not_depend_on_the_batch(rows, batch_size):
    data = pd.DataFrame(
        {"a": np.arange(rows, dtype=np.float32), "b": np.ones(rows, dtype=np.float64)}
    )
    values = [arrow_of(one, data[one.name]) for one in DESCRIPTION.columns]
    found = Predictor(NETWORK, DESCRIPTION, batch_size).predict(values, rows)["y"]
    with torch.no_grad():
        scores = NETWORK(torch.tensor(data.to_numpy(dtype=np.float32)))
    assert np.allclose(found["rawPrediction"], scores, atol=1e-6)
    assert found["prediction"].tolist() == scores.argmax(1).tolist()
    assert found["probability"].shape == (rows, 3)


def test_each_task_has_its_columns():
    scores = torch.tensor([[2.0, -1.0], [-3.0, 0.5]])
    assert list(prediction_columns(scores, "regression")) == ["prediction"]
    several = prediction_columns(scores, "multilabel")
    assert several["prediction"].tolist() == [[True, False], [False, True]]
    binary = prediction_columns(scores[:, :1], "binary")
    assert binary["rawPrediction"].tolist() == [[-2.0, 2.0], [3.0, -3.0]]
    assert binary["prediction"].tolist() == [1.0, 0.0]
    assert torch.allclose(binary["probability"].sum(1), torch.ones(2, dtype=torch.float64))
    for task in ("binary", "multiclass", "multilabel"):
        made = prediction_columns(scores[:, : 1 if task == "binary" else 2], task)
        assert list(made) == list(Output(task).columns)


@pytest.mark.parametrize(
    ("output", "shape"),
    [
        (Output("regression"), (4, 2)),
        (Output("binary"), (4, 2)),
        (Output("regression", size=3), (4, 2)),
        (Output("multiclass", size=3), (4, 2)),
        (Output("multiclass"), (4, 2, 2)),
    ],
)
def test_an_output_of_another_size_is_told(output, shape):
    with pytest.raises(ValueError, match=r"The model returned \[4, 2.* for 'y'; expected"):
        checked(torch.zeros(shape), output, "y")


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_description_survives_json():
    assert Description.from_json(DESCRIPTION.to_json()) == DESCRIPTION

from __future__ import annotations

import mlflow
import pytest
import torch
from mlflow.exceptions import MlflowException

from sparkdl_runner.tracking.rank.advice import advice


def test_a_model_without_an_example_is_told_the_line_to_write(tmp_path):
    model = torch.nn.Linear(3, 1)
    with pytest.raises(MlflowException) as caught:
        mlflow.pytorch.save_model(model, str(tmp_path / "model"))
    assert "log_model(model, name='model', input_example=rows.numpy())" in advice(caught.value)


def test_other_errors_get_no_advice():
    told = "input_example is required"
    for error in (ValueError(told), MlflowException("no such run"), MlflowException(told[::-1])):
        assert advice(error) == ""

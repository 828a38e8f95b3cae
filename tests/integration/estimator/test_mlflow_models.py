"""A fitted model as MLflow keeps it: it loads and answers where this package is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sparkdl_runner.estimator import TorchModel
from sparkdl_runner.estimator.prediction.mlflow_model import log_torch_model, made_up, written
from sparkdl_runner.tensors.columns import Column

# What a server does with a request, in a process that cannot import this package.
SERVER = """
import json, sys
import mlflow.pyfunc
from mlflow.pyfunc import scoring_server

model = mlflow.pyfunc.load_model(sys.argv[1])
request = json.dumps({"dataframe_records": [{"a": 1, "x": [1.0, 2.0]}, {"a": 2, "x": [0.5, 3.0]}]})
schema = model.metadata.get_input_schema()
answer = scoring_server.invocations(request, "application/json", model, schema)
assert "sparkdl_runner" not in sys.modules
print(answer.response)
"""


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.cat([a[:, None], x], 1))


COLUMNS = (Column(name="a"), Column(name="x", kind="list", shape=(2,)))


@pytest.fixture
def model() -> TorchModel:
    return TorchModel(Both(), ["a", "x"], {"label": "multiclass"}, columns=COLUMNS)


def test_a_server_answers_without_this_package(model: TorchModel, tmp_path: Path) -> None:
    place = tmp_path / "model"
    with written(model) as arguments:
        mlflow.pyfunc.save_model(str(place), **arguments)
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sparkdl_runner.py").write_text("raise ImportError('not installed')\n")
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(place)],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "without")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = pd.DataFrame(json.loads(done.stdout)["predictions"])
    expected = model.get_model()(
        torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 2.0], [0.5, 3.0]])
    ).detach()
    assert list(found.columns) == ["rawPrediction", "probability", "prediction"]
    assert np.allclose(found["rawPrediction"].tolist(), expected, atol=1e-4)
    assert found["prediction"].tolist() == expected.argmax(1).tolist()
    about = mlflow.models.get_model_info(str(place))
    assert {one["name"] for one in about.signature.inputs.to_dict()} == {"a", "x"}
    pinned = (place / "requirements.txt").read_text().split()
    assert any(one.startswith("torch==") for one in pinned)


def test_what_cannot_be_logged_is_told(model: TorchModel) -> None:
    with pytest.raises(ValueError, match=r"alias is 'best', and there is no registered_model_name"):
        log_torch_model(model, alias="best")
    with (
        pytest.raises(ValueError, match="does not know the types of its columns"),
        written(TorchModel(Both(), ["a", "x"], {"label": "multiclass"})),
    ):
        pass


def test_an_example_is_made_up_for_every_kind_of_column() -> None:
    columns = (
        *COLUMNS,
        Column(name="i", dtype="int64"),
        Column(name="image", kind="image", dtype="uint8", image=(2, 3, "RGB")),
        Column(name="w", kind="list", dtype="int64", shape=(None,), pad=3),
    )
    example = made_up(columns)
    assert len(example) == 2
    assert [len(row) for row in example["w"]] == [3, 3]
    assert isinstance(example["image"][0], bytes)

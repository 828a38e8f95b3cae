"""This version loads what an earlier one saved, whose files name modules that have moved since."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from torch import nn

from sparkdl_runner.checkpoint import CheckpointManager
from sparkdl_runner.data import make_spark_converter
from sparkdl_runner.estimator import TorchEstimator, TorchModel


class Earlier(NamedTuple):
    """Files of the version before the folders of this package became layers."""

    folder: Path
    batches_left: list[list[int]]
    """The column id of the batches behind the one after which the checkpoint was saved."""
    inputs: list[list[float]]
    outputs: list[list[float]]
    """What the network made of the inputs."""


@pytest.fixture
def earlier(tmp_path: Path) -> Earlier:
    with tarfile.open(Path(__file__).with_name("earlier_files.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "earlier"
    return Earlier(folder, **json.loads((folder / "expected.json").read_text()))


def test_a_fitted_model(spark: Any, earlier: Earlier) -> None:
    model = TorchModel.load(f"file://{earlier.folder}/model", trust=True)
    rows = [(number, one) for number, one in enumerate(earlier.inputs)]
    frame = spark.createDataFrame(rows, "id int, features array<double>")
    frame = frame.withColumn("features", array_to_vector(F.col("features")))
    found = [
        row["rawPrediction"].toArray() for row in model.transform(frame).orderBy("id").collect()
    ]
    assert np.allclose(found, earlier.outputs, atol=1e-5)


def test_an_estimator(spark: Any, earlier: Earlier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_RUNNER_TRUST", "1")  # Its optimizer is a partial.
    estimator = TorchEstimator.load(f"file://{earlier.folder}/estimator")
    assert estimator.getOrDefault("epochs") == 2
    assert isinstance(estimator.getOrDefault("model"), nn.Linear)


def test_a_model_of_mlflow(earlier: Earlier) -> None:
    model = mlflow.pyfunc.load_model(str(earlier.folder / "served"))
    found = model.predict(pd.DataFrame({"features": earlier.inputs}))
    assert np.allclose(found["rawPrediction"].tolist(), earlier.outputs, atol=1e-5)


def test_a_checkpoint_and_a_conversion(earlier: Earlier) -> None:
    network = nn.Linear(2, 2)
    converter = make_spark_converter(f"file://{earlier.folder}/conversion")
    with (
        converter.make_torch_dataloader(batch_size=8, num_epochs=1, shuffle=True, seed=3) as loader,
        CheckpointManager(str(earlier.folder / "checkpoints")) as manager,
    ):
        restored = manager.restore(network, torch.optim.Adam(network.parameters()), loader)
        assert restored is not None
        assert (restored.step, restored.extra) == (7, {"best": 0.5})
        assert [batch["id"].tolist() for batch in loader] == earlier.batches_left
    with torch.no_grad():
        found = network(torch.tensor(earlier.inputs))
    assert np.allclose(found, earlier.outputs, atol=1e-5)

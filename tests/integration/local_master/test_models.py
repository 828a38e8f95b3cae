"""A logged network scores DataFrames of vectors and of arrays, and loads without its source."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sparkdl_runner import DistributedRunner, RunConfig
from sparkdl_runner.tracking import Tracking

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """mlflow and torch set variables when they read a model."""
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)


def log_both(can_be_exported: bool) -> dict[str, Any]:
    """Trains nothing; logs a network whose answer is known: the sum of a row, and its double."""
    import torch

    from sparkdl_runner import current_world
    from sparkdl_runner.tracking import log_metrics, log_model

    log_metrics(6, loss=0.75)
    log_metrics(7, loss=0.5)

    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
            self.module = torch.nn.Identity()  # Called as what wrappers hold, and only a part.

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            total = rows.sum(dim=1, keepdim=True)
            if not can_be_exported and float(total[0]) > 1e9:
                total = -total  # What depends on the data cannot be a graph.
            return self.module(total * self.scale)

    info = log_model(
        Sums(),
        input_example=torch.arange(4.0).reshape(1, 4),
        columns="a",
        step=7,
        checkpoint="file:///checkpoints/step-7/attempt-0",
        registered_model_name="sums" if can_be_exported else None,
        alias="champion" if can_be_exported else None,
    )
    from mlflow.utils import requirements_utils

    return {
        "rank": current_world().rank,
        "model_id": info.model_id if info else None,
        "has_read_package_lists": requirements_utils._MODULES_TO_PACKAGES is not None,
    }


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_store: Callable[[Path], str]) -> str:
    monkeypatch.chdir(tmp_path)  # where MLflow puts the artifacts of such a store
    return new_store(tmp_path)


def run(store: str, ranks: int, can_be_exported: bool) -> tuple[Any, Any]:
    import mlflow

    runner = DistributedRunner(
        num_proc=-ranks,
        backend="torch",
        run_config=RunConfig(tracking=Tracking(tracking_uri=store, experiment="models")),
    )
    found = runner.run(log_both, can_be_exported=can_be_exported)
    assert not found["has_read_package_lists"], "which takes longer than all else"
    client = mlflow.MlflowClient(tracking_uri=store)
    return client, client.get_logged_model(found["model_id"])


# The score job of test_jobs calls the same of Spark, in both lanes.
@pytest.mark.one_lane
def test_an_exported_network_scores_vectors_and_arrays(spark: Any, store: str) -> None:
    import mlflow
    from pyspark.ml.functions import array_to_vector, vector_to_array
    from pyspark.sql import functions as f

    client, model = run(store, 2, can_be_exported=True)
    assert model.tags["sparkdl_runner.serialization"] == "pt2"
    assert model.tags["sparkdl_runner.step"] == "7"
    assert model.tags["sparkdl_runner.checkpoint"] == "file:///checkpoints/step-7/attempt-0"
    assert model.params["world_size"] == "2"
    assert [(one.key, one.value, one.step) for one in model.metrics] == [("loss", 0.5, 7)]
    assert model.tags["mlflow.source.name"] == sys.argv[0], "the driver's program, not the worker"
    outputs = client.get_run(model.source_run_id).outputs.model_outputs
    assert [(one.model_id, one.step) for one in outputs] == [(model.model_id, 7)]
    assert len(client.search_logged_models([model.experiment_id])) == 1, "one, not one a rank"
    assert model.model_id in client.get_model_version_by_alias("sums", "champion").source

    mlflow.set_tracking_uri(store)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = rows.sum(1, keepdims=True) * [1, 2]
    loaded = mlflow.pyfunc.load_model("models:/sums@champion")
    np.testing.assert_allclose(loaded.predict(pd.DataFrame({"a": list(rows)})), expected)

    frame = spark.createDataFrame(
        [(index, row.tolist()) for index, row in enumerate(rows)], "id long, a array<float>"
    )
    frame = frame.withColumn("d", f.col("a").cast("array<double>"))
    # In one part, so that one Python of Spark's imports torch, and not one for each core.
    frame = frame.withColumn("v", array_to_vector("d")).coalesce(1)
    score = mlflow.pyfunc.spark_udf(spark, model.model_uri, env_manager="local")
    # By the name of its column; doubles and floats; Spark makes an array of a vector.
    scored = frame.select(
        "id", score().alias("x"), score("d").alias("y"), score(vector_to_array("v")).alias("z")
    )
    assert scored.schema["x"].dataType.simpleString() == "array<float>"
    for row, right in zip(scored.orderBy("id").collect(), expected, strict=True):
        np.testing.assert_allclose([row.x, row.y, row.z], [right] * 3)


def test_a_tensor_without_a_name_scores_arrays_of_its_type(spark: Any, tmp_path: Path) -> None:
    """By the type that follows from the signature: an array of each row's predictions."""
    import mlflow
    import torch
    from mlflow.models import Model

    from sparkdl_runner.tracking.models import log_model as models
    from sparkdl_runner.tracking.models.example import Example
    from sparkdl_runner.tracking.models.requirements import requirements

    rows, network = torch.arange(8.0).reshape(2, 4), torch.nn.Linear(4, 2).eval()
    example = Example.of(rows, network)
    flavor = models._write(network, example, None, None, tmp_path / "model", "m")
    flavor.save_model(str(tmp_path / "saved"), Model(), pip_requirements=requirements())
    score = mlflow.pyfunc.spark_udf(spark, str(tmp_path / "saved"), env_manager="local")
    frame = spark.createDataFrame([(rows[0].tolist(),)], "a array<float>").coalesce(1)
    ((scored,),) = frame.select(score("a")).collect()
    np.testing.assert_allclose(scored, network(rows)[0].tolist(), rtol=1e-4)


@pytest.mark.one_lane
def test_what_cannot_be_exported_is_pickled_and_that_is_said(
    store: str, capfd: pytest.CaptureFixture[str]
) -> None:
    _, model = run(store, 1, can_be_exported=False)
    assert model.tags["sparkdl_runner.serialization"] == "pickle"
    assert "cannot be exported" in capfd.readouterr().out

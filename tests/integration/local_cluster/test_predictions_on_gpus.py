"""``transform`` on executors with GPUs, which torch only pretends to have."""

from __future__ import annotations

import time

import pytest
import torch
from pyspark import TaskContext
from pyspark.sql import functions as F

from sparkdl_runner.estimator import TorchModel

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

# Python runs a module of this name when it starts.
SITE = """
import torch

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 8
torch.Tensor.to = lambda tensor, device: tensor
"""


def tells_its_device() -> torch.nn.Module:
    """A network that predicts the number of the GPU that it was brought to."""

    class Network(torch.nn.Module):  # Travels by value, as executors have not this file.
        def to(self, device):
            self.device = device
            return self

        def forward(self, numbers):
            time.sleep(0.3)  # So that no executor does all tasks.
            return torch.full((len(numbers),), float(self.device.removeprefix("cuda:")))

    return Network()


def test_each_task_predicts_on_the_gpu_that_spark_gave_it(two_slots, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    monkeypatch.setitem(two_slots.sparkContext.environment, "PYTHONPATH", str(tmp_path))
    address = F.udf(lambda _: TaskContext.get().resources()["gpu"].addresses[0])
    model = TorchModel(tells_its_device(), ["numbers"], {"label": "regression"})
    frame = two_slots.range(0, 4, 1, 4).selectExpr("id", "array(1.0F) AS numbers")
    rows = model.transform(frame).withColumn("address", address("id")).collect()
    assert {(row.address, row.prediction) for row in rows} == {("3", 3.0), ("5", 5.0)}

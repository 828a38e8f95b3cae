"""A task predicts on the GPU that Spark gave it, by whatever name Spark and CUDA know that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Output
from sparkdl_runner.tensors.predictor import Description, Predictor
from sparkdl_runner.tensors.spark_worker import device_of

UUIDS = ["5fd4f087-86f3-7a43-b711-4771313afc50", "0000f087-86f3-7a43-b711-4771313afc50"]


def task_with(*addresses: str) -> SimpleNamespace:
    """What Spark's TaskContext tells of a task's GPUs; without any, it has no such entry."""
    gpu = {"gpu": SimpleNamespace(name="gpu", addresses=list(addresses))} if addresses else {}
    return SimpleNamespace(resources=lambda: gpu)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    properties = [SimpleNamespace(uuid=uuid) for uuid in UUIDS]
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    return monkeypatch


@pytest.mark.parametrize(
    ("visible", "addresses", "devices"),
    [
        (None, ["0", "1"], ["cuda:0", "cuda:1"]),
        ("4,5", ["0", "1"], ["cuda:0", "cuda:1"]),
        ("4, 5", ["4", "5"], ["cuda:0", "cuda:1"]),
        # Two tasks of an executor that sees these would else share the first one.
        ("1,2", ["0", "1"], ["cuda:0", "cuda:1"]),
        (None, [f"GPU-{one}" for one in UUIDS], ["cuda:0", "cuda:1"]),
        ("GPU-a,GPU-b", ["GPU-a", "GPU-b"], ["cuda:0", "cuda:1"]),
        # A container that shows its GPUs alone, and a part of a GPU, of which CUDA shows one.
        (None, ["7", "MIG-9"], ["cuda:0", "cuda:0"]),
    ],
)
def test_each_task_has_the_gpu_of_its_address(two_gpus, visible, addresses, devices):
    if visible is not None:
        two_gpus.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device_of(task_with(one)) for one in addresses] == devices


def test_a_task_without_a_gpu_takes_the_cpu(two_gpus):
    assert device_of(None) == device_of(task_with()) == "cpu"
    two_gpus.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(task_with("0")) == "cpu"


def test_what_a_network_is_given_is_on_its_device():
    # On torch's meta device nothing is computed, and what was not brought there is refused.
    network = torch.nn.Linear(2, 1, device="meta")
    description = Description(
        inputs=Inputs({"": ("features",)}),
        columns=(Column(name="features", kind="list", shape=(2,)),),
        outputs={"y": Output("regression")},
    )
    predictor = Predictor(network, description, 8, "meta")
    assert predictor._outputs({"features": torch.ones(3, 2)})["y"].device.type == "meta"

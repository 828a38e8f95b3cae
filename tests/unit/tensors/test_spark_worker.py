"""What a Python worker of Spark does with a network and with batches of rows, without Spark."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl_runner.base.sent_file import key_of
from sparkdl_runner.tensors import spark_worker
from sparkdl_runner.tensors.columns import Column
from sparkdl_runner.tensors.inputs import Inputs
from sparkdl_runner.tensors.outputs import Output, Task
from sparkdl_runner.tensors.predictor import Description, matrices
from sparkdl_runner.tensors.spark_worker import PackedNetwork, Prediction

A, B = np.arange(5, dtype=np.float32), np.ones(5, dtype=np.float32)


class Sum(nn.Module):
    """The sum of two columns, and for a second label its negative."""

    def __init__(self, several: bool) -> None:
        super().__init__()
        self.several = several

    def forward(self, rows: torch.Tensor) -> Any:
        total = rows.sum(1)
        return {"y": total, "z": torch.stack([-total, total], 1)} if self.several else total


class Scores(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows - 0.5


def packed(network: nn.Module) -> PackedNetwork:
    content = pickle.dumps(network)
    return PackedNetwork(key_of(content), SimpleNamespace(value=content), is_graph=False)


def prediction(network: nn.Module, **tasks: Task) -> Prediction:
    description = Description(
        inputs=Inputs({"": ("a", "b")}),
        columns=(Column(name="a"), Column(name="b")),
        outputs={label: Output(task) for label, task in tasks.items()},
    )
    assert matrices(description) == {"": ("a", "b")}, "two columns are a matrix already"
    return Prediction(packed(network), description, 2)


@pytest.fixture(autouse=True)
def _as_a_new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(spark_worker, "_loaded", type(spark_worker._loaded)())
    spark_worker._freeze_modules.cache_clear()
    gc.unfreeze()  # What the session of the tests has taken out of the collection at its start.
    yield
    gc.freeze()


def test_a_prediction_of_one_column_is_that_column() -> None:
    batches = [(pa.array(A), pa.array(B)), (pa.array(A[:2]), pa.array(B[:2]))]
    found = list(prediction(Sum(several=False), y="regression").of_arrow(iter(batches)))
    assert [one.to_pylist() for one in found] == [[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0]]
    assert {one.type for one in found} == {pa.float64()}


def test_what_is_imported_is_not_looked_at_by_the_collection_after_each_task() -> None:
    next(
        prediction(Sum(several=False), y="regression").of_arrow(iter([(pa.array(A), pa.array(B))]))
    )
    assert not any(one is vars(torch.nn) for one in gc.get_objects())
    assert gc.get_freeze_count() > 10_000


def test_predictions_of_several_columns_are_a_struct_by_the_labels_number() -> None:
    made = prediction(Sum(several=True), y="regression", z="multiclass")
    (found,) = made.of_arrow(iter([(pa.array(A), pa.array(B))]))
    assert [one.name for one in found.type] == [
        "p0_prediction",
        "p1_rawPrediction",
        "p1_probability",
        "p1_prediction",
    ]
    assert found.field("p0_prediction").to_pylist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert found.field("p1_rawPrediction").to_pylist() == [
        [-n, n] for n in (1.0, 2.0, 3.0, 4.0, 5.0)
    ]
    assert found.field("p1_prediction").to_pylist() == [1.0] * 5


def test_several_labels_of_a_row_are_the_list_of_their_numbers() -> None:
    (found,) = prediction(Scores(), y="multilabel").of_arrow(
        iter([(pa.array([0.0, 1.0, 1.0], pa.float32()), pa.array([1.0, 1.0, 0.0], pa.float32()))])
    )
    assert found.field("p0_prediction").to_pylist() == [[1.0], [0.0, 1.0], [0.0]]


def test_no_rows_have_no_predictions() -> None:
    empty = pa.array([], pa.float32())
    (found,) = prediction(Scores(), y="multiclass").of_arrow(iter([(empty, empty)]))
    assert len(found) == 0
    assert found.field("p0_probability").type == pa.list_(pa.float64())


def test_pandas_gets_a_series_or_a_frame() -> None:
    batch = (pd.Series(A), pd.Series(B))
    (one,) = prediction(Sum(several=False), y="regression").of_pandas(iter([batch]))
    assert isinstance(one, pd.Series)
    assert one.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    made = prediction(Sum(several=True), y="regression", z="multiclass")
    (several,) = made.of_pandas(iter([batch]))
    assert list(several.columns) == [
        "p0_prediction",
        "p1_rawPrediction",
        "p1_probability",
        "p1_prediction",
    ]
    assert several["p1_prediction"].tolist() == [1.0] * 5


def test_a_worker_loads_a_network_once_and_keeps_the_two_that_it_used_last() -> None:
    networks = [packed(nn.Linear(1, number)) for number in (1, 2, 3)]
    first, second = (one.on("cpu") for one in networks[:2])
    assert (first.out_features, second.out_features) == (1, 2)
    assert networks[0].on("cpu") is first
    networks[2].on("cpu")
    assert networks[0].on("cpu") is first, "it was used after the second"
    assert networks[1].on("cpu") is not second


def test_a_network_that_cannot_be_unpacked_says_what_to_do() -> None:
    broken = PackedNetwork("key", SimpleNamespace(value=b"cnowhere\nNet\n."), is_graph=False)
    with pytest.raises(RuntimeError, match=r"ModuleNotFoundError: .*nowhere.*--py-files"):
        broken.on("cpu")

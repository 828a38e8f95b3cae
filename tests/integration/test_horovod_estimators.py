"""Horovod's own Spark estimator, with this package's ranks under it.

In one lane, as it reads its data by petastorm.
"""

from __future__ import annotations

import os
import sys

import pytest

from sparkdl_runner import WorkerFailedError, current_world
from sparkdl_runner.horovod import SparkBackend, create_store

pytestmark = [pytest.mark.integration, pytest.mark.one_lane]

EPOCHS = 6


def mean_squared_error(output, label):
    return (output - label).square().mean()


def fails_in_rank_1(output, label):
    if current_world().rank == 1:
        raise ValueError("row 17 has no label")
    return mean_squared_error(output, label)


@pytest.fixture
def estimator(tmp_path, monkeypatch):
    # torch sets it in a process that makes an optimizer, if it is not there yet.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    import torch
    from horovod.spark.torch import TorchEstimator

    # Horovod puts another module in its place, in each process that pickles a model.
    monkeypatch.setitem(sys.modules, "torch._C._nn", torch._C._nn)
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return TorchEstimator(
        store=create_store(str(tmp_path)),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.2),
        loss=mean_squared_error,
        feature_cols=["features"],
        label_cols=["sum"],
        input_shapes=[[-1, 2]],
        validation="is_validation",
        batch_size=8,
        epochs=EPOCHS,
        partitions_per_process=1,
        random_seed=1,
        run_id="a-fit",
    )


@pytest.fixture
def frame(spark):
    columns = [
        "array(cast(id % 7 / 7 AS float), cast(id % 5 / 5 AS float)) AS features",
        "cast(id % 7 / 7 + 2 * (id % 5 / 5) AS float) AS sum",
        "id % 4 = 0 AS is_validation",
    ]
    return spark.range(0, 160, 1, 2).selectExpr(*columns)


def test_it_fits_on_the_clusters_slots_and_its_model_predicts(estimator, frame, capfd):
    model = estimator.setBackend(SparkBackend()).fit(frame)
    shown = capfd.readouterr().out
    assert "[rank 0] Train rows: 120, Train batch size: 8, Train_steps_per_epoch: 7" in shown
    assert "[rank 1] " in shown
    losses = [epoch["validation"]["loss"] for epoch in model.getHistory()]
    assert len(losses) == EPOCHS
    assert losses[-1] < losses[0] / 10
    rows = model.transform(frame).collect()
    assert len(rows) == 160
    assert max(abs(row["sum__output"] - row["sum"]) for row in rows) < 0.5
    store = estimator.getStore()
    assert store.exists(store.get_checkpoint_path("a-fit"))


def test_an_error_of_a_rank_is_raised_by_fit(estimator, frame):
    with pytest.raises(WorkerFailedError, match=r"Rank 1 of 2 .* row 17 has no label") as caught:
        estimator.setBackend(SparkBackend(2)).setLoss(fails_in_rank_1).fit(frame)
    assert caught.value.rank == 1
    assert "FutureWarning" not in "\n".join(caught.value.output_tail)
    frames = caught.value.remote_traceback.splitlines()
    assert "horovod/spark/torch/remote.py" in frames[1]
    assert any(line.endswith("in fails_in_rank_1") for line in frames)


def place(first, *, second):
    found = [os.environ.get(name) for name in ("GREETING", "CUDA_VISIBLE_DEVICES")]
    return current_world().rank, first, second, *found


@pytest.mark.usefixtures("light_ranks")
def test_arguments_and_variables_reach_all_ranks_and_all_values_come_back():
    env = {"GREETING": "hello", "CUDA_VISIBLE_DEVICES": "7", "PYTHONPATH": "/of/this/host"}
    values = SparkBackend(-2).run(place, args=(1,), kwargs={"second": 2}, env=env)
    assert values == [(0, 1, 2, "hello", None), (1, 1, 2, "hello", None)]

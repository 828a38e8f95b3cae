"""``TorchEstimator.fit`` on real Spark: its data, its run, what is left and what is refused."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from estimator_parts import ROWS, estimator, frame
from pyspark.sql import functions as F
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from sparkdl_runner import RunConfig
from sparkdl_runner.data.convert import conversion
from sparkdl_runner.data.convert.split import make_split_converters
from sparkdl_runner.tracking import Tracking
from sparkdl_runner.training.fitting.columns import split_condition
from sparkdl_runner.training.fitting.conversions import Conversions, Selection, convert


@pytest.fixture
def _same_environment():
    """mlflow sets variables of its own when it is first imported."""
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)


def files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*.parquet") if path.is_file()]


def ids(converter) -> list[int]:
    with converter.make_torch_dataloader(64, num_epochs=1, tail="uneven") as loader:
        return [int(one) for batch in loader for one in batch["id"]]


@pytest.mark.usefixtures("_same_environment")
def test_a_fit_is_an_mlflow_run_with_its_settings_and_deletes_its_conversion(
    spark, cache, tmp_path_factory, new_store
):
    import mlflow

    uri = new_store(tmp_path_factory.mktemp("mlflow"))
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    fitted = estimator(
        model=model,
        validation=0.25,
        epochs=2,
        num_proc=1,
        metrics={"accuracy": MulticlassAccuracy(2)},
        run_config=RunConfig(tracking=Tracking(tracking_uri=uri, opening_timeout_seconds=170)),
    ).fit(frame(spark))

    assert [sorted(epoch) for epoch in fitted.history] == [["loss", "val_accuracy", "val_loss"]] * 2
    assert fitted.history[1]["val_loss"] < fitted.history[0]["val_loss"]
    assert torch.equal(model.weight, before)
    assert not torch.equal(fitted.get_model().weight, before)
    assert fitted.transform(frame(spark)).where("prediction = label").count() > ROWS * 0.9
    assert files(cache) == []
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(fitted.run_id)
    assert run.info.status == "FINISHED"
    wanted = {
        "model": "Linear of 6 parameters",
        "optimizer": "SGD",
        "optimizer.lr": "0.5",
        "loss": "cross_entropy",
        "epochs": "2",
        "batch_size_per_rank": "8",
        "validation": "0.25",
    }
    assert {name: run.data.params.get(name) for name in wanted} == wanted
    assert sorted(name for name in run.data.params if "epochs" in name) == [
        "epochs",
        "warmup_epochs",
    ]
    assert len(client.get_metric_history(fitted.run_id, "val_loss")) == 2
    assert {one.dataset.name for one in run.inputs.dataset_inputs} == {
        "train_data",
        "validation_data",
    }


@pytest.fixture
def bucket(monkeypatch):
    """The URL of a bucket on an S3-compatible server in this process, known by the environment."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "only")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    options = {"access_key": "tests", "secret_key": "only", "region": "us-east-1"}
    place = {"endpoint_override": f"{host}:{port}", "scheme": "http"}
    fs.S3FileSystem(**options, **place, allow_bucket_creation=True).create_dir("fits")
    yield "s3://fits"
    server.stop()


@pytest.mark.one_lane
def test_a_fit_goes_on_from_checkpoints_in_an_object_store(spark, bucket):
    parts = {"checkpoint_dir": f"{bucket}/all/", "run_config": RunConfig(tracking=False)}
    first = estimator(epochs=1, **parts).fit(frame(spark))
    # Of another model with weights of its own, so that an epoch done anew would differ.
    both = estimator(epochs=2, **parts).fit(frame(spark))
    assert len(both.history) == 2
    assert both.history[0] == first.history[0]


def test_each_row_is_in_one_of_both_data_sets_though_the_plan_gives_other_rows_each_time(
    spark, cache
):
    # Another id for each row each time that the plan is computed.
    random = spark.range(0, 500, 1, 4).select((F.rand() * 2**40).cast("long").alias("id"))
    data = convert(random, Selection(columns=("id",), validation=0.3, seed=1))
    train, validation = ids(data.train), ids(data.validation)
    assert len(set(train) | set(validation)) == 500 == len(train) + len(validation)
    assert 100 < len(validation) < 200
    data.delete()
    assert files(cache) == []


def test_a_share_is_the_same_rows_for_the_same_seed(spark):
    table = frame(spark)

    def share(seed: int) -> list[int]:
        chosen = table.where(split_condition(table, 0.3, seed)).select("id")
        return [row.id for row in chosen.collect()]

    assert share(1) == share(1) != share(2)


def test_a_split_measures_each_part_for_itself(spark, cache):
    lists = spark.range(0, 8, 1, 1).select(
        (F.col("id") >= 4).alias("validates"),
        F.expr("array_repeat(float(id), if(id >= 4, 3, 2))").alias("list"),
        F.when(F.col("id") != 6, F.col("id")).alias("maybe"),
    )
    parts = make_split_converters(lists, "validates", allow_nulls=True)
    found = [(len(part), part.open()[0].column("list").list_lengths) for part in parts if part]
    assert found == [(4, (2,)), (4, (3,))]
    assert [part.open()[0].column("maybe").null_count for part in parts] == [0, 1]
    assert len({part.open()[0].fingerprint for part in parts}) == 2
    for part in parts:
        part.delete()
    assert files(cache) == []


def test_what_the_data_do_not_allow_is_told_before_ranks_start(spark, cache, monkeypatch, caplog):
    table = frame(spark)
    monkeypatch.setattr("sparkdl_runner.runner.DistributedRunner.run", None)

    def refused(df, **params) -> str:
        with pytest.raises((ValueError, TypeError)) as raised:
            estimator(**params).fit(df)
        assert files(cache) == []
        return str(raised.value)

    assert "Did you mean 'features'?" in refused(table, feature_cols=["feature"])
    told = refused(table.withColumn("label", F.lit("a")))
    assert "The column 'label' is string" in told
    assert "StringIndexer" in told
    nested = table.withColumn("user", F.struct(F.lit(1).alias("age")))
    assert "df.withColumn('user_age', F.col('user.age'))" in refused(
        nested, feature_cols=["user.age"]
    )
    told = refused(table, model=nn.Linear(3, 2))
    assert "'features' float32 [8, 2]" in told
    assert "8x2 and 3x2" in told
    assert "values from 0 to 1, and the model has one output" in refused(
        table, model=nn.Linear(2, 1)
    )
    many = table.withColumn("label", F.col("label") * 3)
    assert "values from 0 to 3, and the model has 2 outputs" in refused(many)
    told = refused(table.withColumn("label", F.col("label") + 0.5))
    assert told.startswith("The label column 'label' holds ")
    assert "whole numbers" in told
    assert "has 1 null, and" in refused(
        table.withColumn("label", F.when(F.col("id") != 5, F.col("label")))
    )
    lists = table.withColumn("features", F.expr("array_repeat(1.0F, int(id % 3))"))
    assert refused(lists).endswith("cut or filled up, by pad={'features': …}.")
    # Nothing warns of them besides: a fit decides how its lists are read.
    assert not [one for one in caplog.records if "differ in length" in one.getMessage()]
    negative = table.withColumn("weight", F.col("id") - 2)
    assert "'weight' holds -2; weights must be 0 or" in refused(
        negative, sample_weight_col="weight"
    )
    assert "has no rows" in refused(table.limit(0))
    told = refused(table.where("id < 3"), validation="id", batch_size=1)
    assert told.startswith("The validation column 'id' holds 2, and it says 1 for the rows to")
    told = refused(table.withColumn("validates", F.lit(False)), validation="validates")
    assert "leaves none of the DataFrame's 64 rows to validate with" in told
    assert "a step takes 65 (1 ranks" in refused(table, batch_size=65)
    told = refused(table, optimizer=partial(torch.optim.SGD, rate=1))
    assert told.endswith("keyword argument 'rate'): correct the arguments of functools.partial.")
    told = refused(table, optimizer=lambda parameters: parameters)
    assert "made a generator; expected a torch.optim.Optimizer" in told


def test_fits_of_one_frame_share_a_conversion_that_goes_with_the_last(spark, cache, monkeypatch):
    counted = []
    real = conversion.write_parquet
    monkeypatch.setattr(conversion, "write_parquet", lambda *a: counted.append(a) or real(*a))
    conversions = Conversions(frame(spark), fits=2)
    selection = Selection(columns=("features", "label"), classes=("label",))
    with conversions:
        first = conversions.get(selection)
    with conversions:
        assert conversions.get(selection) is first
        assert files(cache)
    assert (len(counted), files(cache)) == (1, [])

    failing = Conversions(frame(spark), fits=3)

    def fail() -> None:
        with failing:
            failing.get(selection)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert files(cache) == []
    abandoned = Conversions(frame(spark), fits=3)
    with abandoned:
        abandoned.get(selection)
    del abandoned
    assert files(cache) == []


def test_a_network_of_doubles_is_given_what_it_was_trained_with(spark, cache):
    class Doubles(nn.Module):
        """Computes in another type than its rows have, which are float32 in training."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1, 1).double()

        def forward(self, x):
            return self.inner(x.double()[:, None])

    table = spark.range(16).select((F.col("id") / 3).alias("x"), (F.col("id") * 1.0).alias("label"))
    model = estimator(
        model=Doubles(), feature_cols=["x"], loss=nn.functional.mse_loss, task="regression"
    ).fit(table)
    (row,) = model.transform(table.where("x > 4.5 and x < 5")).collect()
    given = torch.tensor([row.x], dtype=torch.float32)
    assert row.prediction == model.get_model()(given).item()

"""Fits a Spark ML estimator: the sum of two columns. Its argument is a folder for conversions."""

from __future__ import annotations

import functools
import sys

import torch
from pyspark.sql import SparkSession

from sparkdl_runner.estimator import TorchEstimator


def fit(spark: SparkSession, cache_url: str) -> None:
    """Fits and predicts in a session, with a folder for conversions."""
    spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", cache_url)
    rows = spark.range(256).selectExpr(
        "float(id % 8) AS one", "float(id % 4) AS two", "float(id % 8 + id % 4) AS total"
    )
    model = TorchEstimator(
        model=functools.partial(torch.nn.Linear, 2, 1),
        optimizer=functools.partial(torch.optim.Adam, lr=0.1),
        loss=torch.nn.functional.mse_loss,
        feature_cols=["one", "two"],
        label_cols=["total"],
        num_proc=2,
        batch_size=16,
        epochs=30,
    ).fit(rows)
    predicted = model.transform(rows)
    worst = predicted.selectExpr("max(abs(prediction - total)) AS worst").first().worst
    assert worst < 0.2, worst
    print("all sums are predicted")


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    fit(session, sys.argv[1])
    session.stop()

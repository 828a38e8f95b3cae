"""A small table, and an estimator that is fitted to it in a moment."""

from functools import partial

import torch
from torch import nn

from sparkdl_runner.estimator import TorchEstimator

ROWS = 64


def frame(spark):
    """Vectors of two numbers, of which the first says the class, and a scalar label."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    label = (F.col("id") % 2).cast("double")
    features = array_to_vector(F.array(label * 2 - 1, F.col("id") / ROWS))
    return spark.range(0, ROWS, 1, 2).select(features.alias("features"), label.alias("label"), "id")


def estimator(**params):
    parts = {
        "model": nn.Linear(2, 2),
        "optimizer": partial(torch.optim.SGD, lr=0.5),
        "loss": nn.functional.cross_entropy,
        "num_proc": -1,
        "batch_size": 8,
    }
    return TorchEstimator(**{**parts, **params})

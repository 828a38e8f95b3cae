"""Handwritten digits: their rows, and what trains on them with Horovod or torch.distributed.

Besides ``frames``, which runs on the driver, nothing of it knows Spark: each rank reads its shard
of what was converted, and the functions are those that would run under horovodrun or torchrun. Nor
does it set MLflow up: on rank 0, what is logged lands in the run that the driver has opened.

The driver imports this module and needs no torch, so that is imported in the functions.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from torch import Tensor

    from sparkdl_runner.data import SparkDatasetConverter

SEED = 20
TEST_FRACTION = 0.2
ARROW_CONF = "spark.sql.execution.arrow.pyspark.enabled"


def frames(spark: SparkSession) -> dict[str, DataFrame]:
    """scikit-learn's digits: ``features``, 64 pixels between 0 and 16, and ``label``.

    Returns:
        The rows to learn from and those to evaluate on, by the names of ``fit``'s arguments.
    """
    import pandas as pd

    rows = read_digits()
    table = pd.DataFrame({"features": list(rows[:, :-1]), "label": rows[:, -1].astype("int64")})
    before = spark.conf.get(ARROW_CONF)
    # As Arrow, rows go to the JVM as they are; else a Python worker would convert them one by one.
    spark.conf.set(ARROW_CONF, "true")
    try:
        frame = spark.createDataFrame(table, "features array<float>, label bigint")
    finally:
        spark.conf.set(ARROW_CONF, str(before))
    # From one partition, a seed splits off the same rows however many slots there are.
    parts = frame.coalesce(1).randomSplit([1 - TEST_FRACTION, TEST_FRACTION], seed=SEED)
    return dict(zip(("train_data", "test_data"), parts, strict=True))


def read_digits() -> Any:
    """The file of ``sklearn.datasets.load_digits``: an array [rows, 65], the labels come last.

    Importing scikit-learn takes longer than everything else that is done with 1797 rows.
    """
    import numpy as np

    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            "The digits come with scikit-learn, which is not installed here: run pip install "
            "scikit-learn."
        )
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(path, delimiter=",", dtype="float32")


def train_with_horovod(
    *,
    train_data: SparkDatasetConverter,
    test_data: SparkDatasetConverter,
    learning_rate: float = 3e-3,
    epochs: int = 15,
    batch_size: int = 32,
    checkpoint_url: str | None = None,
    chaos: bool = False,
) -> dict[str, Any]:
    """Trains with Horovod. For the arguments see ``digits_training.fit``."""
    import horovod.torch as hvd
    import torch

    from sparkdl_runner.examples.digits_training import DigitsNet, fit

    hvd.init()
    torch.manual_seed(SEED)
    model = DigitsNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def sum_over_ranks(values: Tensor) -> Tensor:
        return hvd.allreduce(values, op=hvd.Sum)

    return fit(
        model,
        optimizer,
        sum_over_ranks,
        train_data=train_data,
        test_data=test_data,
        epochs=epochs,
        batch_size=batch_size,
        checkpoint_url=checkpoint_url,
        chaos=chaos,
    )


def train_with_torch(
    *,
    train_data: SparkDatasetConverter,
    test_data: SparkDatasetConverter,
    learning_rate: float = 3e-3,
    epochs: int = 15,
    batch_size: int = 32,
    checkpoint_url: str | None = None,
    chaos: bool = False,
) -> dict[str, Any]:
    """Trains with DistributedDataParallel. For the arguments see ``digits_training.fit``."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from sparkdl_runner.examples.digits_training import DigitsNet, fit

    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    model = DistributedDataParallel(DigitsNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def sum_over_ranks(values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    result = fit(
        model,
        optimizer,
        sum_over_ranks,
        train_data=train_data,
        test_data=test_data,
        epochs=epochs,
        batch_size=batch_size,
        checkpoint_url=checkpoint_url,
        chaos=chaos,
    )
    dist.destroy_process_group()
    return result

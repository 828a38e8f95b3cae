"""Handwritten digits: their rows, and a function that trains on them with Horovod or torch.

``frames`` runs on the driver. ``train`` knows neither Spark nor how MLflow is set up: each rank
reads its shard of the conversion, and what rank 0 logs lands in the driver's run.

The driver imports this module and needs no torch, so ``train`` imports it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl_runner import current_world

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    # Without this, a Python worker would convert the rows one by one.
    spark.conf.set(ARROW_CONF, "true")
    try:
        frame = spark.createDataFrame(table, "features array<float>, label bigint")
    finally:
        spark.conf.set(ARROW_CONF, str(before))
    # From one partition, a seed gives the same split whatever the number of slots.
    parts = frame.coalesce(1).randomSplit([1 - TEST_FRACTION, TEST_FRACTION], seed=SEED)
    return dict(zip(("train_data", "test_data"), parts, strict=True))


def read_digits() -> Any:
    """Reads the file of ``sklearn.datasets.load_digits``: [rows, 65], the label comes last.

    Importing scikit-learn would take longer than everything else that is done with 1797 rows.
    """
    import numpy as np

    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "The digits come with scikit-learn, which is not installed here: run pip install "
            "scikit-learn."
        )
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(path, delimiter=",", dtype="float32")


def train(
    *,
    train_data: SparkDatasetConverter,
    test_data: SparkDatasetConverter,
    learning_rate: float = 6e-3,
    epochs: int = 12,
    batch_size: int = 64,
    checkpoint_url: str | None = None,
    chaos: bool = False,
) -> dict[str, Any]:
    """Trains with the run's backend. For the arguments see ``digits_training.fit``."""
    import torch

    from sparkdl_runner.examples.digits_training import DigitsNet, fit, on_horovod, on_torch

    torch.manual_seed(SEED)
    set_up = {"horovod": on_horovod, "torch": on_torch}[current_world().backend]
    with set_up(DigitsNet(), learning_rate) as (model, optimizer, sum_over_ranks):
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
            seed=SEED,
        )

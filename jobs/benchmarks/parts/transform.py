"""Predictions for a DataFrame: rows/s of TorchModel.transform and of what else there is.

All score the same cached table, of one column of arrays, with the same network, and take turns in
one session. In each turn each begins with new Python workers, which gives the time to its first
row, and then scores the whole table. Processor time is this process's and Spark's.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.ranks.processes import cpu_seconds
from benchmarks.suite.case import Case, Figure, Measure
from benchmarks.suite.options import Option
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "predictions, beside spark_udf and a function by hand"
SLOTS, WIDTH = 2, 64
OURS, BY_HAND, MLFLOW = "transform", "iterator UDF", "mlflow spark_udf"
FIGURES = {
    "rows": Figure(unit="rows/s", better="more"),
    "by processor time": Figure(unit="rows/s", better="more"),
    "first row": Figure(unit="s", better="less"),
}
_Predict = Callable[[Any], Any]
"""Adds a column of predictions to a DataFrame."""

OPTIONS = (Option("rows", 200_000, quick=20_000), Option("repeat", 3, quick=1, help="turns"))


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """One table."""
    import torch
    from pyspark.sql import functions as F

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    network = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
    ).eval()
    spark = start_spark("transform benchmark", slots=SLOTS)
    numbers = [F.rand(index).cast("float") for index in range(WIDTH)]
    frame = spark.range(0, arguments.rows, 1, SLOTS).select("id", F.array(*numbers).alias("x"))
    frame = frame.cache()
    frame.count()
    turns = count()

    def side(make: Callable[..., _Predict], *more: Any) -> Measure:
        # A peer that cannot be made is unavailable, as one that cannot score.
        return partial(_scored, cache(partial(make, network, *more)), frame, turns)

    with tempfile.TemporaryDirectory(prefix="transform-benchmark-") as folder:
        yield Case(
            name="array",
            figures=FIGURES,
            ours={OURS: side(_ours)},
            peers={BY_HAND: side(_by_hand), MLFLOW: side(_spark_udf, Path(folder, "model"))},
            turns=arguments.repeat,
            # A single turn is no figure, but a try.
            warm_ups=int(arguments.repeat > 1),
            facts={
                "slots": SLOTS,
                "time": "of a table in memory, with warm Python workers; first row: new ones",
            },
        )
    spark.stop()


def _scored(make: Callable[[], _Predict], frame: Any, turns: Iterator[int]) -> dict[str, float]:
    """Seconds to the first row with new Python workers, and rows per second with these."""
    predict = make()

    def score() -> None:
        predict(frame).write.format("noop").mode("overwrite").save()

    # With another environment Spark starts other workers.
    frame.sparkSession.sparkContext.environment["TRANSFORM_BENCHMARK_TURN"] = str(next(turns))
    started = time.perf_counter()
    predict(frame).first()
    first = time.perf_counter() - started
    score()  # All workers are there.
    rows = frame.count()
    started, started_cpu = time.perf_counter(), cpu_seconds()
    score()
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - started_cpu
    return {"rows": rows / seconds, "by processor time": rows / cpu, "first row": first}


def _ours(network: Any) -> _Predict:
    from sparkdl_runner.estimator import TorchModel

    return lambda frame: TorchModel(network, ["x"], {"label": "regression"}).transform(frame)


def _by_hand(network: Any) -> _Predict:
    """A function of pandas that one writes by hand: the model comes with it."""
    import pandas as pd
    from pyspark.sql import SparkSession, functions

    content = SparkSession.active().sparkContext.broadcast(network)

    def predict(batches: Iterator[Any]) -> Iterator[Any]:
        import numpy as np
        import torch

        model = content.value
        with torch.inference_mode():
            for batch in batches:
                rows = torch.from_numpy(np.stack(batch.to_numpy()))
                yield pd.Series(model(rows).squeeze(1).double().numpy())

    def score(frame: Any) -> Any:
        # Not once for all turns: it keeps the environment of its workers.
        kind: Any = functions
        udf = kind.pandas_udf(predict, "double", kind.PandasUDFType.SCALAR_ITER)
        return frame.withColumn("prediction", udf("x"))

    return score


def _spark_udf(network: Any, path: Path) -> _Predict:
    """MLflow's own function, with the network as MLflow's own flavor saves it."""
    import mlflow
    import numpy as np
    from mlflow.models import infer_signature

    rows = np.zeros((2, WIDTH), dtype=np.float32)
    options = {"serialization_format": "pickle", "pip_requirements": []}
    signature = infer_signature(rows, rows[:, :1])
    mlflow.pytorch.save_model(network, path, signature=signature, **options)

    def score(frame: Any) -> Any:
        load = {"result_type": "double", "env_manager": "local"}
        udf = mlflow.pyfunc.spark_udf(frame.sparkSession, str(path), **load)
        return frame.withColumn("prediction", udf("x"))

    return score

"""Predictions for a DataFrame: rows/s of TorchModel.transform and of what else there is.

All score the same cached table with the same network, Horovod a hundredth of its rows, and take
turns in one session. In each turn each begins with new Python workers, which gives the time to its
first row, and then scores the whole table. Processor time is this process's and Spark's.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from benchmarks.peers import transform_peers
from benchmarks.ranks.processes import cpu_seconds
from benchmarks.suite.case import Case, Figure, Measure
from benchmarks.suite.options import positive
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "predictions, beside spark_udf, Horovod's and a function by hand"
QUICK = ["--tables", "array", "--rows", "100000", "--repeat", "1"]
SLOTS = 2
OURS, SLOW = "transform", "Horovod"
PEERS = {
    "iterator UDF": transform_peers.plain,
    "mlflow spark_udf": transform_peers.spark_udf,
    SLOW: transform_peers.horovod,
}
COLUMNS = {"scalar": [f"c{index:02}" for index in range(33)], "array": ["x"]}
WIDTHS = {"scalar": 33, "array": 64}
FIGURES = {
    "rows": Figure(unit="rows/s", better="more"),
    "by processor time": Figure(unit="rows/s", better="more"),
    "first row": Figure(unit="s", better="less"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--tables", nargs="+", default=list(COLUMNS), choices=list(COLUMNS))
    parser.add_argument("--rows", type=positive, default=400_000)
    parser.add_argument("--repeat", type=positive, default=5, help="measured turns")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each table."""
    import torch

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    spark = start_spark("transform benchmark", slots=SLOTS)
    turns, few_rows = count(), max(1, arguments.rows // 100)
    for table in arguments.tables:
        torch.manual_seed(0)
        network = torch.nn.Sequential(
            torch.nn.Linear(WIDTHS[table], 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
        ).eval()
        with tempfile.TemporaryDirectory(prefix="transform-benchmark-") as folder:
            predicts = {
                name: make(network, COLUMNS[table], f"{folder}/model")
                for name, make in {OURS: _ours, **PEERS}.items()
            }
            frame, few = (_frame(spark, table, rows) for rows in (arguments.rows, few_rows))
            measures: dict[str, Measure] = {
                name: partial(_scored, predict, few if name == SLOW else frame, turns)
                for name, predict in predicts.items()
            }
            yield Case(
                name=table,
                figures=FIGURES,
                ours={OURS: measures[OURS]},
                peers={name: measures[name] for name in arguments.peers},
                turns=arguments.repeat,
                warm_ups=1,
                facts={
                    "rows": arguments.rows,
                    f"rows for {SLOW}": few_rows,
                    "time": "of a table in memory, with warm Python workers; first row: new ones",
                },
            )
        frame.unpersist()
        few.unpersist()
    spark.stop()


def _frame(spark: Any, table: str, rows: int) -> Any:
    from pyspark.sql import functions as F

    numbers = [F.rand(index).cast("float") for index in range(WIDTHS[table])]
    if table == "scalar":
        columns = [one.alias(name) for one, name in zip(numbers, COLUMNS[table], strict=True)]
    else:
        columns = [F.array(*numbers).alias("x")]
    frame = spark.range(0, rows, 1, SLOTS).select("id", *columns).cache()
    frame.count()
    return frame


def _ours(network: Any, columns: list[str], _: str) -> Callable[[Any], Any]:
    from sparkdl_runner.estimator import TorchModel

    return lambda frame: TorchModel(network, columns, {"label": "regression"}).transform(frame)


def _scored(predicted: Callable[[Any], Any], frame: Any, turns: Iterator[int]) -> dict[str, float]:
    """Seconds to the first row with new Python workers, and rows per second with these."""

    def score() -> None:
        predicted(frame).write.format("noop").mode("overwrite").save()

    # With another environment Spark starts other workers.
    environment = frame.sparkSession.sparkContext.environment
    environment["TRANSFORM_BENCHMARK_TURN"] = str(next(turns))
    started = time.perf_counter()
    predicted(frame).first()
    first = time.perf_counter() - started
    score()  # All workers are there.
    rows = frame.count()
    started, started_cpu = time.perf_counter(), cpu_seconds()
    score()
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - started_cpu
    return {"rows": rows / seconds, "by processor time": rows / cpu, "first row": first}

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
from functools import cache, partial
from itertools import count
from typing import Any

from benchmarks.peers.transform_peers import WIDTHS, horovod, plain, spark_udf
from benchmarks.ranks.processes import cpu_seconds
from benchmarks.suite.case import Case, Figure, Measure
from benchmarks.suite.options import Option
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "predictions, beside spark_udf, Horovod's and a function by hand"
SLOTS = 2
OURS, SLOW = "transform", "Horovod"
PEERS = {"iterator UDF": plain, "mlflow spark_udf": spark_udf, SLOW: horovod}
COLUMNS = {"scalar": [f"c{index:02}" for index in range(WIDTHS["scalar"])], "array": ["x"]}
FIGURES = {
    "rows": Figure(unit="rows/s", better="more"),
    "by processor time": Figure(unit="rows/s", better="more"),
    "first row": Figure(unit="s", better="less"),
}

OPTIONS = (
    Option("tables", list(COLUMNS), quick=["array"], choices=list(COLUMNS)),
    Option("rows", 200_000, quick=100000),
    Option("repeat", 3, quick=1, help="measured turns"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Each table."""
    import torch

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    spark = start_spark("transform benchmark", slots=SLOTS)
    turns, rows = count(), arguments.rows
    for table in arguments.tables:
        first = torch.nn.Linear(WIDTHS[table], 128)
        network = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Linear(128, 1)).eval()
        frame, few = (_frame(spark, table, one) for one in (rows, max(1, rows // 100)))
        with tempfile.TemporaryDirectory(prefix="transform-benchmark-") as folder:
            measures: dict[str, Measure] = {}
            for name, make in {OURS: _ours, **PEERS}.items():
                # A peer that cannot be made is unavailable, as one that cannot score.
                predict = cache(partial(make, network, COLUMNS[table], f"{folder}/model"))
                measures[name] = partial(_scored, predict, few if name == SLOW else frame, turns)
            yield Case(
                name=table,
                figures=FIGURES,
                ours={OURS: measures.pop(OURS)},
                peers=measures,
                turns=arguments.repeat,
                warm_ups=1,
                facts={
                    "rows": f"{rows:,}; of {SLOW}, which is slow, {max(1, rows // 100):,}",
                    "time": "of a table in memory, with warm Python workers; first row: new ones",
                },
            )
        spark.catalog.clearCache()
    spark.stop()


def _frame(spark: Any, table: str, rows: int) -> Any:
    from pyspark.sql import functions as F

    numbers = [F.rand(index).cast("float") for index in range(WIDTHS[table])]
    columns = numbers if table == "scalar" else [F.array(*numbers)]
    named = [one.alias(name) for one, name in zip(columns, COLUMNS[table], strict=True)]
    frame = spark.range(0, rows, 1, SLOTS).select("id", *named).cache()
    frame.count()
    return frame


def _ours(network: Any, columns: list[str], _: str) -> Callable[[Any], Any]:
    from sparkdl_runner.estimator import TorchModel

    return lambda frame: TorchModel(network, columns, {"label": "regression"}).transform(frame)


def _scored(
    make: Callable[[], Callable[[Any], Any]], frame: Any, turns: Iterator[int]
) -> dict[str, float]:
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

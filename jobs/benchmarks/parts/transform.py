"""Predictions for a DataFrame: rows/s of TorchModel.transform and of what else there is.

All score the same cached table with the same network, and take turns in one session. In each turn
each begins with Python workers of its own, which gives the time to its first row, and then scores
the whole table. Beside the time on the clock there is the time on the processors, of this process
and Spark's, which a busy machine hardly changes.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.peers import transform_peers
from benchmarks.figures import aligned, in_turns, positive, ratio
from benchmarks.ranks.processes import cpu_seconds
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "predictions, beside spark_udf, Horovod's and a function by hand"
SLOTS = 2
OURS, PLAIN, SPARK_UDF, HOROVOD = "transform", "iterator UDF", "mlflow spark_udf", "Horovod"
PEERS = (PLAIN, SPARK_UDF, HOROVOD)
COLUMNS = {"scalar": [f"c{index:02}" for index in range(33)], "array": ["x"]}
WIDTHS = {"scalar": 33, "array": 64}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--tables", nargs="+", default=list(COLUMNS), choices=list(COLUMNS))
    parser.add_argument("--rows", type=positive, default=400_000)
    parser.add_argument("--horovod-rows", type=positive, default=4_000, help="it is slow")
    parser.add_argument("--repeat", type=positive, default=5, help="measured turns")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores each table with each engine."""
    import torch

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    spark = start_spark("transform benchmark", slots=SLOTS)
    tables: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="transform-benchmark-") as folder:
        for table in arguments.tables:
            print(f"{table}:", flush=True)
            torch.manual_seed(0)
            network = torch.nn.Sequential(
                torch.nn.Linear(WIDTHS[table], 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
            ).eval()
            frame = _frame(spark, table, arguments.rows)
            few = _frame(spark, table, arguments.horovod_rows)
            path = f"{folder}/{table}"
            makers: dict[str, Callable[[Any], Any]] = {
                OURS: partial(_ours, network, COLUMNS[table]),
                PLAIN: partial(transform_peers.plain, network, COLUMNS[table]),
                SPARK_UDF: transform_peers.spark_udf(network, COLUMNS[table], path),
                HOROVOD: partial(transform_peers.horovod, network, COLUMNS[table]),
            }
            calls = {
                name: partial(_scored, spark, make, few if name == HOROVOD else frame)
                for name, make in makers.items()
                if name == OURS or name in arguments.peers
            }
            found = in_turns(calls, arguments.repeat, warm_up=True)
            tables[table] = _summaries(found)
            frame.unpersist()
            few.unpersist()
    spark.stop()
    return {"tables": tables}


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


def _ours(network: Any, columns: list[str], frame: Any) -> Any:
    from sparkdl_runner.estimator import TorchModel

    return TorchModel(network, columns, {"label": "regression"}).transform(frame)


_turns: Iterator[int] = iter(range(10**9))


def _scored(spark: Any, make: Callable[[Any], Any], frame: Any) -> dict[str, float]:
    """Seconds to the first row with new Python workers, and rows per second with these."""
    # With another environment Spark starts other workers.
    spark.sparkContext.environment["TRANSFORM_BENCHMARK_TURN"] = str(next(_turns))
    started = time.perf_counter()
    make(frame).first()
    first = time.perf_counter() - started
    make(frame).write.format("noop").mode("overwrite").save()  # All workers are there.
    rows = frame.count()
    started, started_cpu = time.perf_counter(), cpu_seconds()
    make(frame).write.format("noop").mode("overwrite").save()
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - started_cpu
    return {
        "first_row_seconds": first,
        "rows_per_second": rows / seconds,
        "rows_per_cpu_second": rows / cpu,
    }


def _summaries(found: Mapping[str, Any]) -> dict[str, Any]:
    """Medians, and to the peers ours as median ratios of the same turns."""
    summaries: dict[str, Any] = {}
    ours = found[OURS]
    for name, turns in found.items():
        if isinstance(turns, str):
            summaries[name] = {"unavailable": turns}
            continue
        keys = list(turns[0])
        summaries[name] = {key: statistics.median(one[key] for one in turns) for key in keys}
        summaries[name]["turns"] = turns
        if name == OURS or isinstance(ours, str):
            continue
        for key, times in (("rows_per_second", "times"), ("rows_per_cpu_second", "cpu_times")):
            summaries[name][times] = ratio([one[key] for one in ours], [one[key] for one in turns])
        summaries[name]["first_row_later"] = statistics.median(
            mine["first_row_seconds"] - other["first_row_seconds"]
            for mine, other in zip(ours, turns, strict=True)
        )
    return summaries


def table(report: Mapping[str, Any]) -> str:
    """All tables and engines; for peers how many times faster ours is."""
    rows: list[tuple[str, ...]] = []
    for kind, summaries in report["tables"].items():
        heads = ("rows/s", "rows/cpu s", "first row", "ours is times", "by cpu", "ours first row")
        rows += [("", "", ""), (kind, *heads)]
        for name, one in summaries.items():
            if "unavailable" in one:
                rows.append((name, f"unavailable: {one['unavailable']}"))
                continue
            cells = [f"{one['rows_per_second']:,.0f}", f"{one['rows_per_cpu_second']:,.0f}"]
            cells.append(f"{one['first_row_seconds']:.2f} s")
            if "times" in one:
                cells += [f"{one['times']:.2f}", f"{one['cpu_times']:.2f}"]
                cells.append(f"{one['first_row_later']:+.2f} s")
            rows.append((name, *cells))
    return aligned(rows[1:])


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether this package gave all figures."""
    return not any("unavailable" in one[OURS] for one in report["tables"].values())

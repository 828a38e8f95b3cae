"""How long it takes to convert a DataFrame, for this package and for petastorm's converter.

Every converter is given the same Parquet table and ends with a converter that knows its rows and
files. Each measurement has a process and a session of its own: the first call there, and later
calls. What was converted is deleted outside of the measured time. Beside the time on the clock
stands that on the processors, of this process and Spark's, which a busy machine hardly changes.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.ranks.processes import cpu_seconds, in_fresh_processes
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "a DataFrame, beside petastorm's converter"
SLOTS = 2
LATER = 3
CALLS = ("first call", "first call, processors", "later call", "later call, processors")
OURS, OURS_BY_SPARK, PETASTORM = "sparkdl_runner", "sparkdl_runner by Spark alone", "petastorm"
MODULES = ("sparkdl_runner.data", "petastorm.spark")
_NUMBER = "double(id * {i} % 9973 / 7)"
KINDS = {
    "scalars": _NUMBER,
    "strings": f"hex({_NUMBER})",
    "arrays": f"transform(sequence(1, 64), i -> {_NUMBER})",
    "ragged": f"transform(sequence(1, int(id % 127 + 1)), i -> {_NUMBER})",
    "vectors": f"transform(sequence(1, 64), i -> {_NUMBER})",
}
"""The SQL of a column. Tables without arrays have 33 of them, numbered by ``{i}``."""

OPTIONS = (
    Option("rows", 300_000, quick=50000, help="of each table"),
    Option("kinds", ["scalars", "vectors"], quick=["arrays"], choices=list(KINDS)),
    Option("repeat", 2, quick=1, help="sessions of each"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A table of each kind."""

    def fresh(function: Callable[..., Any], *request: Any) -> Any:
        return in_fresh_processes(function, [request], preloaded=MODULES)[0]

    seconds = Figure(unit="s", better="less")
    with tempfile.TemporaryDirectory(prefix="convert-benchmark-") as folder:
        for kind in arguments.kinds:
            path = Path(folder, kind)
            fresh(_write, str(path), kind, arguments.rows)
            converted = partial(fresh, _converted, str(path), arguments.rows)
            yield Case(
                name=kind,
                figures=dict.fromkeys(CALLS, seconds),
                ours={side: partial(converted, side) for side in (OURS, OURS_BY_SPARK)},
                peers={PETASTORM: partial(converted, PETASTORM)},
                turns=arguments.repeat,
                facts={"time": f"without imports; later calls: the median of {LATER} in a session"},
            )


def _session() -> Any:
    logging.disable(logging.WARNING)
    return start_spark("convert benchmark", slots=SLOTS)


def _write(path: str, kind: str, rows: int) -> None:
    """Writes a table of one kind."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    names = range(1, 34) if "->" not in KINDS[kind] else ["i"]
    columns = [f"{KINDS[kind].format(i=i)} x{i}" for i in names]
    spark = _session()
    table = spark.range(0, rows, 1, SLOTS).selectExpr("id", *columns)
    if kind == "vectors":
        table = table.withColumn("xi", array_to_vector(F.col("xi")))
    table.write.option("compression", "uncompressed").parquet(f"file://{path}")
    spark.stop()


def _converted(path: str, rows: int, side: str) -> dict[str, float]:
    """Seconds on the clock and on the processors, in a new session.

    Raises:
        RuntimeError: The converter did not find all rows.
    """
    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.data.consumers.petastorm import engine

    if side == OURS_BY_SPARK:  # As where petastorm cannot run.
        engine.can_convert = lambda *_: False
    spark, module = _session(), import_module(MODULES[side == PETASTORM])
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{path}-converted")
    seconds, cpu = [], []
    for _ in range(1 + LATER):
        started, started_cpu = time.perf_counter(), cpu_seconds()
        converter = module.make_spark_converter(spark.read.parquet(f"file://{path}"))
        seconds.append(time.perf_counter() - started)
        cpu.append(cpu_seconds() - started_cpu)
        if len(converter) != rows:
            raise RuntimeError(f"it found {len(converter)} rows of {rows}")
        converter.delete()
    spark.stop()
    later = statistics.median(seconds[1:]), statistics.median(cpu[1:])
    return dict(zip(CALLS, (seconds[0], cpu[0], *later), strict=True))

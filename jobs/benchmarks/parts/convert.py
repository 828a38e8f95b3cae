"""How long it takes to convert a DataFrame, for this package and for petastorm's converter.

Every converter is given the same Parquet table and ends with a converter that knows its rows and
files. Each measurement has a process and a session of its own: the first call there, and later ones
of a session that is warm. What was converted is deleted outside of the measured time. Beside the
time on the clock there is the time on the processors, of this process and Spark's, which a busy
machine hardly changes.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.ranks.processes import cpu_seconds, in_fresh_processes
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import positive
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "a DataFrame, beside petastorm's converter"
QUICK = ["--rows", "50000", "--kinds", "arrays", "--repeat", "1"]
SLOTS = 2
LATER = 3
IMPORTS = ("sparkdl_runner.data", "petastorm.spark")
SECONDS = Figure(unit="s", better="less")
OURS, OURS_BY_SPARK, PETASTORM = "sparkdl_runner", "sparkdl_runner by Spark alone", "petastorm"

_NUMBER = "double(id * {i} % 9973 / 7)"
KINDS = {
    "scalars": _NUMBER,
    "integers": "id * {i} % 9973",
    "decimals": f"cast({_NUMBER} as decimal(12, 3))",
    "timestamps": "timestamp_seconds(id * {i})",
    "strings": f"hex({_NUMBER})",
    "binary": "unhex(repeat(sha2(string(id), 256), 8))",
    "arrays": f"transform(sequence(1, 64), i -> {_NUMBER})",
    "ragged": f"transform(sequence(1, int(id % 127 + 1)), i -> {_NUMBER})",
    "nested": f"array_repeat(transform(sequence(1, 8), i -> {_NUMBER}), 8)",
    "vectors": f"transform(sequence(1, 64), i -> {_NUMBER})",
}
"""What a column holds. The first five kinds have 33 columns, whose numbers take ``{i}``'s place."""
_SCALARS = list(KINDS)[:5]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--rows", type=positive, default=300_000, help="of each table")
    parser.add_argument("--kinds", nargs="+", default=["scalars", "vectors"], choices=list(KINDS))
    parser.add_argument("--repeat", type=positive, default=3, help="sessions of each")


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A table of each kind."""
    with tempfile.TemporaryDirectory(prefix="convert-benchmark-") as folder:
        for kind in arguments.kinds:
            path = Path(folder, kind)
            in_fresh_processes(_write, [(str(path), kind, arguments.rows)], preloaded=IMPORTS)

            def converted(side: str, path: Path = path) -> dict[str, float]:
                request = (side, str(path), arguments.rows)
                (figures,) = in_fresh_processes(_converted, [request], preloaded=IMPORTS)
                return figures

            size_bytes = sum(file.stat().st_size for file in path.glob("*.parquet"))
            yield Case(
                name=kind,
                figures={
                    name + on: SECONDS
                    for name in ("first call", "later call")
                    for on in ("", ", processors")
                },
                ours={side: partial(converted, side) for side in (OURS, OURS_BY_SPARK)},
                peers={PETASTORM: partial(converted, PETASTORM)},
                turns=arguments.repeat,
                facts={
                    "rows": arguments.rows,
                    "megabytes": round(size_bytes / 1e6),
                    "time": "from a table to a converter that knows its files, without imports; "
                    f"later calls: the median of {LATER}",
                },
            )


def _session() -> Any:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    return start_spark("convert benchmark", slots=SLOTS)


def _write(path: str, kind: str, rows: int) -> None:
    """Writes a table of one kind."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    names = range(1, 34) if kind in _SCALARS else ["i"]
    columns = [f"{KINDS[kind].format(i=i)} x{i}" for i in names]
    table = _session().range(0, rows, 1, SLOTS).selectExpr("id", *columns)
    if kind == "vectors":
        table = table.withColumn("xi", array_to_vector(F.col("xi")))
    table.write.option("compression", "uncompressed").parquet(f"file://{path}")


def _converted(side: str, path: str, rows: int) -> dict[str, float]:
    """Seconds on the clock and on the processors, in a new session.

    Raises:
        RuntimeError: The converter did not find all rows.
    """
    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.data.consumers.petastorm import engine

    module = import_module("petastorm.spark" if side == PETASTORM else "sparkdl_runner.data")
    spark = _session()
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{path}-converted")
    seconds, cpu = [], []
    if side == OURS_BY_SPARK:
        engine.can_convert = lambda *_: False
    for _ in range(1 + LATER):
        started, started_cpu = time.perf_counter(), cpu_seconds()
        converter = module.make_spark_converter(spark.read.parquet(f"file://{path}"))
        seconds.append(time.perf_counter() - started)
        cpu.append(cpu_seconds() - started_cpu)
        if len(converter) != rows:
            raise RuntimeError(f"it found {len(converter)} rows of {rows}")
        converter.delete()
    return {
        "first call": seconds[0],
        "first call, processors": cpu[0],
        "later call": statistics.median(seconds[1:]),
        "later call, processors": statistics.median(cpu[1:]),
    }

"""How long it takes to convert a DataFrame, for this package and for petastorm's converter.

Every converter is given the same Parquet table and ends with a converter that knows its rows and
files. They take turns in one session, and what was converted is deleted outside of the measured
time. Beside the time on the clock there is the time on the processors, of this process and Spark's,
which a busy machine hardly changes.
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import sparkdl_runner.data.dataset.describe
from benchmarks.figures import aligned, in_turns, positive, summary
from benchmarks.ranks.processes import cpu_seconds
from sparkdl_runner.data.dataset.describe import describe_written
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "a DataFrame, beside petastorm's converter"
SLOTS = 2
OURS, OURS_WITHOUT, PETASTORM = "sparkdl_runner", "sparkdl_runner by Spark alone", "petastorm"
SHARES = {"of_petastorms_time": "median", "of_petastorms_cpu": "cpu_median"}


def _columns(kind: str) -> list[Any]:
    """The columns of one kind of table, made from ``id``."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    def number(i: Any) -> Any:
        return (F.col("id") * i % 9973 / 7).cast("double")

    def several(make: Callable[[int], Any]) -> list[Any]:
        return [make(i).alias(f"x{i}") for i in range(1, 34)]

    def numbers(count: Any) -> Any:
        return F.transform(F.sequence(F.lit(1), count), number)

    makers: dict[str, Callable[[], list[Any]]] = {
        "scalars": lambda: several(number),
        "integers": lambda: several(lambda i: F.col("id") * i % 9973),
        "decimals": lambda: several(lambda i: number(i).cast("decimal(12, 3)")),
        "timestamps": lambda: several(lambda i: F.timestamp_seconds(F.col("id") * i)),
        "strings": lambda: several(lambda i: F.hex(number(i))),
        "binary": lambda: [F.unhex(F.repeat(F.sha2(F.col("id").cast("string"), 256), 8))],
        "arrays": lambda: [numbers(F.lit(64)).alias("x")],
        "ragged": lambda: [numbers((F.col("id") % 127 + 1).cast("int")).alias("x")],
        "nested": lambda: [F.array_repeat(numbers(F.lit(8)), 8).alias("x")],
        "vectors": lambda: [array_to_vector(numbers(F.lit(64))).alias("x")],
    }
    return ["id", *makers[kind]()]


KINDS = (
    *("scalars", "integers", "decimals", "timestamps", "strings", "binary"),
    *("arrays", "ragged", "nested", "vectors"),
)


def _convert_here(df: Any) -> Any:
    """This package, with petastorm's converter where it is installed."""
    from sparkdl_runner.data import make_spark_converter

    return make_spark_converter(df)


def _convert_here_by_spark(df: Any) -> Any:
    """This package as it works where petastorm cannot run."""
    from sparkdl_runner.data.consumers.petastorm import engine as petastorm_engine

    with mock.patch.object(petastorm_engine, "can_convert", return_value=False):
        return _convert_here(df)


def _convert_with_petastorm(df: Any) -> Any:
    from petastorm.spark import make_spark_converter

    return make_spark_converter(df)


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    OURS: _convert_here,
    OURS_WITHOUT: _convert_here_by_spark,
    PETASTORM: _convert_with_petastorm,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the benchmark."""
    parser.add_argument("--rows", type=positive, default=300_000, help="of each table")
    parser.add_argument(
        "--kinds", nargs="+", default=["scalars", "arrays", "vectors"], choices=KINDS
    )
    parser.add_argument("--repeat", type=positive, default=5, help="measured calls of each")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Converts tables of each kind with each converter."""
    from sparkdl_runner.data import SparkDatasetConverter

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    spark = start_spark("convert benchmark", slots=SLOTS)
    tables: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="convert-benchmark-") as folder:
        cache = Path(folder, "cache")
        cache.mkdir()
        spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, cache.as_uri())
        for kind in arguments.kinds:
            print(f"{kind}:", flush=True)
            path = Path(folder, kind)
            source = spark.range(0, arguments.rows, 1, SLOTS).select(*_columns(kind))
            source.write.option("compression", "uncompressed").parquet(path.as_uri())
            size_bytes = sum(path.stat().st_size for path in path.glob("*.parquet"))
            calls = {
                name: partial(_timed, convert, spark, path.as_uri(), arguments.rows)
                for name, convert in CONVERTERS.items()
            }
            found = in_turns(calls, arguments.repeat, warm_up=True)
            tables[kind] = _summaries(found, arguments.rows, size_bytes)
    spark.stop()
    return {"tables": tables}


def _timed(
    convert: Callable[[Any], Any], spark: Any, url: str, rows: int
) -> tuple[float, float, float]:
    """Seconds on the clock, on the processors, and on the processors to describe what was written.

    Raises:
        RuntimeError: The converter did not find all rows.
    """
    gc.collect()
    describing = 0.0

    def describe(*arguments: Any) -> Any:
        nonlocal describing
        before = time.process_time()
        try:
            return describe_written(*arguments)
        finally:
            describing += time.process_time() - before

    with mock.patch.object(sparkdl_runner.data.dataset.describe, "describe_written", describe):
        started, started_cpu = time.perf_counter(), cpu_seconds()
        converter = convert(spark.read.parquet(url))
        seconds = (time.perf_counter() - started, cpu_seconds() - started_cpu, describing)
    found = len(converter)
    converter.delete()
    if found != rows:
        raise RuntimeError(f"it found {found} rows of {rows}")
    return seconds


def _summaries(found: Mapping[str, Any], rows: int, size_bytes: int) -> dict[str, Any]:
    """Adds medians and rates, and to ours the time as a share of petastorm's."""
    summaries: dict[str, Any] = {}
    for name, one in found.items():
        if isinstance(one, str):
            summaries[name] = summary(one)
            continue
        seconds, cpu, describing = map(list, zip(*one, strict=True))
        summaries[name] = {
            **summary(seconds),
            "cpu_seconds": cpu,
            "cpu_median": statistics.median(cpu),
            "described_share": statistics.median(describing) / statistics.median(cpu),
            "rows_per_second": rows / statistics.median(seconds),
            "megabytes_per_second": size_bytes / 1e6 / statistics.median(seconds),
        }
    theirs = summaries[PETASTORM]
    for name in (OURS, OURS_WITHOUT):
        if "median" in theirs and "median" in summaries[name]:
            shares = {key: summaries[name][of] / theirs[of] for key, of in SHARES.items()}
            summaries[name] |= shares
    return summaries


def table(report: Mapping[str, Any]) -> str:
    """All tables, with the share of petastorm's time and processor time."""
    rows: list[tuple[str, ...]] = []
    for kind, summaries in report["tables"].items():
        heads = ("median", "min", "max", "cpu", "describing", "rows/s", "MB/s")
        rows += [("", "", ""), (kind, *heads, "of petastorm's time", "cpu")]
        for name, one in summaries.items():
            if "unavailable" in one:
                rows.append((name, f"unavailable: {one['unavailable']}"))
                continue
            times = [f"{one[key]:.2f} s" for key in ("median", "min", "max", "cpu_median")]
            times.append(f"{one['described_share']:.1%}")
            rates = [f"{one['rows_per_second']:,.0f}", f"{one['megabytes_per_second']:.0f}"]
            shares = [f"{one[share]:.2f}" for share in SHARES if share in one]
            rows.append((name, *times, *rates, *shares))
    return aligned(rows[1:])


def is_good(report: Mapping[str, Any]) -> bool:
    """Whether this package gave all figures."""
    tables = report["tables"].values()
    return not any("unavailable" in one[name] for one in tables for name in (OURS, OURS_WITHOUT))

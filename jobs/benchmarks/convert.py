"""How long it takes to convert a DataFrame, for this package and for petastorm's converter.

Every converter is given the same Parquet table and ends with a converter that knows its rows and
files. Calls are interleaved in one session, so that all share the machine's good and bad moments,
and what was converted is deleted outside of the measured time. Beside the time on the
clock there is the time on the processors, of this process and Spark's, which a busy machine hardly
changes.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from sparkdl_runner.jobs.spark.session import start_spark

SLOTS = 2
OURS, OURS_WITHOUT, PETASTORM = "sparkdl_runner", "sparkdl_runner by Spark alone", "petastorm"

Convert = Callable[[Any], Any]


# The data --------------------------------------------------------------------------------------


def table_columns(kind: str) -> list[Any]:
    """The columns of one kind of table, made from ``id``."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    numbers = F.transform(
        F.sequence(F.lit(1), F.lit(64)), lambda i: (F.col("id") * i % 9973 / 7).cast("double")
    )
    if kind == "scalars":
        return ["id", *((F.col("id") * i % 9973 / 7).alias(f"x{i}") for i in range(1, 34))]
    if kind == "arrays":
        return ["id", numbers.alias("x")]
    return ["id", array_to_vector(numbers).alias("x")]


KINDS = ("scalars", "arrays", "vectors")


# The converters --------------------------------------------------------------------------------


def convert_here(df: Any) -> Any:
    """This package, with petastorm's converter where it is installed."""
    from sparkdl_runner.data import make_spark_converter

    return make_spark_converter(df)


def convert_here_by_spark(df: Any) -> Any:
    """This package as it works where petastorm cannot run."""
    from sparkdl_runner.data.petastorm import engine as petastorm_engine

    with mock.patch.object(petastorm_engine, "can_convert", return_value=False):
        return convert_here(df)


def convert_with_petastorm(df: Any) -> Any:
    """petastorm's own."""
    from petastorm.spark import make_spark_converter

    return make_spark_converter(df)


CONVERTERS: dict[str, Convert] = {
    OURS: convert_here,
    OURS_WITHOUT: convert_here_by_spark,
    PETASTORM: convert_with_petastorm,
}


# The measurement -------------------------------------------------------------------------------


@contextmanager
def parent_directory(spark: Any) -> Iterator[Path]:
    """A directory for tables and conversions, gone afterwards."""
    from sparkdl_runner.data import SparkDatasetConverter

    with tempfile.TemporaryDirectory(prefix="convert-benchmark-") as directory:
        cache = Path(directory, "cache")
        cache.mkdir()
        spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, cache.as_uri())
        yield Path(directory)


def measure(spark: Any, table: str, rows: int, repeat: int) -> dict[str, Any]:
    """Converts one table with each converter in turns.

    Args:
        spark: The session.
        table: The URL of the table.
        rows: What a converter must find in it.
        repeat: Measured calls of each, after one that is not measured.

    Returns:
        For each converter a list of seconds on the clock and on the processors, or the reason why
        there is none.
    """
    results: dict[str, Any] = {name: [] for name in CONVERTERS}
    names = list(CONVERTERS)
    for turn in range(repeat + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if isinstance(results[name], str):
                continue
            gc.collect()
            started, started_cpu = time.perf_counter(), cpu_seconds()
            try:
                converter = CONVERTERS[name](spark.read.parquet(table))
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            seconds = (time.perf_counter() - started, cpu_seconds() - started_cpu)
            found = len(converter)
            converter.delete()
            if found != rows:
                results[name] = f"it found {found} rows of {rows}"
            elif turn > 0:
                results[name].append(seconds)
    return results


SHARES = {"of_petastorms_time": "median", "of_petastorms_cpu": "cpu_median"}


def cpu_seconds() -> float:
    """What this process and its children, the JVM first of all, have used so far."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system
    return total


def summarize(results: dict[str, Any], rows: int, size_bytes: int) -> dict[str, Any]:
    """Adds medians and rates, and to ours the time as a share of petastorm's."""
    summary: dict[str, Any] = {}
    for name, result in results.items():
        if isinstance(result, str):
            summary[name] = {"unavailable": result}
            continue
        seconds, cpu = map(list, zip(*result, strict=True))
        median = statistics.median(seconds)
        summary[name] = {
            "seconds": seconds,
            "median": median,
            "min": min(seconds),
            "max": max(seconds),
            "cpu_seconds": cpu,
            "cpu_median": statistics.median(cpu),
            "rows_per_second": rows / median,
            "megabytes_per_second": size_bytes / 1e6 / median,
        }
    if "median" in summary[PETASTORM]:
        for name in (OURS, OURS_WITHOUT):
            if "median" in summary[name]:
                for share, figure in SHARES.items():
                    summary[name][share] = summary[name][figure] / summary[PETASTORM][figure]
    return summary


def show(kind: str, summary: dict[str, Any]) -> None:
    """Prints one table."""
    heads = f"{'median':>8}{'min':>8}{'max':>8}{'cpu':>8}{'rows/s':>11}{'MB/s':>6}"
    print(f"\n{kind:<30}{heads}   of petastorm's time and cpu")
    for name, figures in summary.items():
        if "unavailable" in figures:
            print(f"{name:<30} unavailable: {figures['unavailable']}")
            continue
        keys = ("median", "min", "max", "cpu_median")
        times = "".join(f"{figures[key]:>6.2f} s" for key in keys)
        rates = f"{figures['rows_per_second']:>11,.0f}{figures['megabytes_per_second']:>6.0f}"
        shares = "".join(f"   {figures[share]:.2f}" for share in SHARES if share in figures)
        print(f"{name:<30}{times}{rates}{shares}")


def run(arguments: argparse.Namespace) -> int:
    """Measures, prints, and writes JSON.

    Returns:
        The exit code: 1 if this package gave no figure.
    """
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    spark = start_spark("convert benchmark", slots=SLOTS)
    tables: dict[str, Any] = {}
    with parent_directory(spark) as directory:
        for kind in KINDS:
            table = directory / kind
            source = spark.range(0, arguments.rows, 1, SLOTS).select(*table_columns(kind))
            source.write.option("compression", "uncompressed").parquet(table.as_uri())
            size_bytes = sum(path.stat().st_size for path in table.glob("*.parquet"))
            results = measure(spark, table.as_uri(), arguments.rows, arguments.repeat)
            tables[kind] = summarize(results, arguments.rows, size_bytes)
            show(kind, tables[kind])
    spark.stop()
    report = {
        "benchmark": "convert",
        "rows": arguments.rows,
        "repeat": arguments.repeat,
        "cpus": len(os.sched_getaffinity(0)),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("pyspark", "pyarrow", "petastorm")},
        },
        "tables": tables,
    }
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\nWritten to {arguments.output}")
    ours = [table[name] for table in tables.values() for name in (OURS, OURS_WITHOUT)]
    return int(any("unavailable" in figures for figures in ours))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's arguments."""
    parser.add_argument(
        "--rows", type=positive, default=300_000, help="rows of each table (default: 300000)"
    )
    parser.add_argument(
        "--repeat", type=positive, default=5, help="measured calls of each (default: 5)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("benchmark-convert.json"), help="the JSON file"
    )


def add_parser(benchmarks: Any) -> None:
    """Adds this benchmark to the command line."""
    parser = benchmarks.add_parser("convert", help="a DataFrame, beside petastorm's converter")
    add_arguments(parser)
    parser.set_defaults(run=run)


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)

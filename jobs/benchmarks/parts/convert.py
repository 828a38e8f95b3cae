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
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.ranks.processes import cpu_seconds, in_fresh_processes
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import write_table
from sparkdl_runner.jobs.spark.session import start_spark

HELP = "a DataFrame, beside petastorm's converter"
SLOTS = 2
LATER = 2
CALLS = ("first call", "first call, processors", "later call", "later call, processors")
OURS, OURS_BY_SPARK, PETASTORM = "sparkdl_runner", "sparkdl_runner by Spark alone", "petastorm"
MODULES = ("sparkdl_runner.data", "petastorm.spark")
KINDS = {"scalars": "scalar", "strings": "string", "arrays": "array", "ragged": "ragged"}
"""For each kind which of the loaders' tables it is."""

OPTIONS = (
    Option("rows", 200_000, quick=50_000, help="of each table"),
    Option("kinds", ["arrays"], choices=list(KINDS)),
    Option("repeat", 2, quick=1, help="sessions of each"),
)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A table of each kind."""
    rows = arguments.rows
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory(prefix="convert-benchmark-") as folder:
            path = Path(folder, kind)
            write_table(KINDS[kind], path, rows=rows, files=SLOTS)

            def fresh(side: str, path: Path = path) -> dict[str, float]:
                request = (str(path), rows, side)
                return in_fresh_processes(_converted, [request], preloaded=MODULES)[0]

            yield Case(
                name=kind,
                figures=dict.fromkeys(CALLS, Figure(unit="s", better="less")),
                ours={side: partial(fresh, side) for side in (OURS, OURS_BY_SPARK)},
                peers={PETASTORM: partial(fresh, PETASTORM)},
                turns=arguments.repeat,
                facts={"slots": SLOTS, "time": f"without imports; later: median of {LATER}"},
            )


def _converted(path: str, rows: int, side: str) -> dict[str, float]:
    """Seconds on the clock and on the processors, in a new session.

    Raises:
        RuntimeError: The converter did not find all rows.
    """
    from sparkdl_runner.data import SparkDatasetConverter
    from sparkdl_runner.data.consumers.petastorm import engine

    if side == OURS_BY_SPARK:  # As where petastorm cannot run.
        engine.can_convert = lambda *_: False
    logging.disable(logging.WARNING)
    spark = start_spark("convert benchmark", slots=SLOTS)
    module = import_module(MODULES[side == PETASTORM])
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

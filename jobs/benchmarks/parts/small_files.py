"""Folders of many small files, as streams leave them: opening, and the first batch.

Each measurement is that of a fresh process, on the same files, which the system has in memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from benchmarks.ranks.processes import in_fresh_processes
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import positive
from benchmarks.tables.loader_tables import TABLES

HELP = "folders of thousands of files: opening them, and the first batch"
QUICK = ["--files", "2000", "--repeat", "2"]
OURS, FOOTERS, COUNT = "make_spark_converter", "plain footers", "Arrow's count_rows"
FILE_ROWS, BATCH_SIZE = 50, 256
OPENED, FIRST_BATCH = "opened", "first batch"
LEAST_TIMES, MOST_SECONDS = 0.5, 1.0
"""Goals: as many times as fast as reading plain footers, and seconds to the first batch."""
_PRELOADED = (
    __name__,
    *(
        "pyarrow.dataset",
        "benchmarks.ranks.loader_readers",
        "sparkdl_runner.data.convert.converter",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this part."""
    parser.add_argument("--files", type=positive, nargs="+", default=[2000, 20_000])
    parser.add_argument("--repeat", type=positive, default=5)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A case for each folder."""
    for files in arguments.files:
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), files)
            yield Case(
                name=f"{files:,} files",
                figures={
                    OPENED: Figure(unit="s", better="less", least_ratios={OURS: LEAST_TIMES}),
                    FIRST_BATCH: Figure(unit="s", better="less", bound=MOST_SECONDS),
                },
                ours={OURS: partial(_measured, OURS, folder)},
                peers={FOOTERS: partial(_measured, FOOTERS, folder)},
                limits={COUNT: partial(_measured, COUNT, folder)},
                turns=arguments.repeat,
                facts={"time": "without imports", "rows of a file": FILE_ROWS, "batch": BATCH_SIZE},
            )


def _write(folder: Path, files: int) -> None:
    """Writes the files, with no manifest beside them."""
    random, make = np.random.default_rng(0), TABLES["int"][0]
    for number in range(files):
        pq.write_table(pa.table(make(random, FILE_ROWS)), folder / f"part-{number:06}.parquet")


def _measured(side: str, folder: str) -> dict[str, float]:
    (found,) = in_fresh_processes(_opened, [(side, folder)], preloaded=_PRELOADED)
    return found


def _opened(side: str, folder: str) -> dict[str, float]:
    from sparkdl_runner.data.convert.converter import make_spark_converter

    began = time.perf_counter()
    if side == FOOTERS:
        for path in Path(folder).iterdir():
            pq.read_metadata(path)
    elif side == COUNT:
        pyarrow.dataset.dataset(folder).count_rows()
    else:
        converter = make_spark_converter(folder)
    found = {OPENED: time.perf_counter() - began}
    if side == OURS:
        began = time.perf_counter()
        with converter.make_torch_dataloader(batch_size=BATCH_SIZE, num_epochs=1) as loader:
            next(iter(loader))
            found[FIRST_BATCH] = time.perf_counter() - began
    return found

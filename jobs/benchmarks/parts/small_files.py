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
import pyarrow.parquet as pq

from benchmarks.ranks.processes import in_fresh_processes
from benchmarks.ranks.shards import PRELOADED
from benchmarks.suite.case import Case, Figure
from benchmarks.suite.options import Option
from benchmarks.tables.loader_tables import TABLES

HELP = "folders of thousands of files: opening them, and the first batch"
OURS, FOOTERS = "make_spark_converter", "plain footers"
FILE_ROWS, BATCH_SIZE = 50, 256
OPENED, FIRST_BATCH = "opened", "first batch"
FACTS = {"ranks": 1, "time": "without imports", "batch": BATCH_SIZE, "rows of a file": FILE_ROWS}
_PRELOADED = (*PRELOADED, __name__, "sparkdl_runner.data.convert.converter")

OPTIONS = (Option("files", [2000, 20_000], quick=[2000]), Option("repeat", 6, quick=2))


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """A case for each folder."""
    for files in arguments.files:
        with tempfile.TemporaryDirectory() as folder:
            # With no manifest beside them.
            for number in range(files):
                table = pa.table(TABLES["int"][0](np.random.default_rng(number), FILE_ROWS))
                pq.write_table(table, f"{folder}/part-{number:06}.parquet")

            def measured(side: str, folder: str = folder) -> dict[str, float]:
                return in_fresh_processes(_opened, [(side, folder)], preloaded=_PRELOADED)[0]

            yield Case(
                name=f"{files:,} files",
                figures={
                    OPENED: Figure(unit="s", better="less", least_ratios={OURS: 0.5}),
                    FIRST_BATCH: Figure(unit="s", better="less", bound=1.0),
                },
                ours={OURS: partial(measured, OURS)},
                peers={FOOTERS: partial(measured, FOOTERS)},
                turns=arguments.repeat,
                facts=FACTS,
            )


def _opened(side: str, folder: str) -> dict[str, float]:
    from sparkdl_runner.data.convert.converter import make_spark_converter

    began = time.perf_counter()
    if side == FOOTERS:
        for path in Path(folder).iterdir():
            pq.read_metadata(path)
        return {OPENED: time.perf_counter() - began}
    converter = make_spark_converter(folder)
    opened = time.perf_counter()
    with converter.make_torch_dataloader(batch_size=BATCH_SIZE, num_epochs=1) as loader:
        next(iter(loader))
        return {OPENED: opened - began, FIRST_BATCH: time.perf_counter() - opened}

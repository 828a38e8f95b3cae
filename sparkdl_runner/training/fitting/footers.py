"""The smallest and largest value of columns, as the footers of Parquet files have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from sparkdl_runner.base.foreign_file import open_input
from sparkdl_runner.data.dataset.footers import footer_bytes, in_threads
from sparkdl_runner.data.dataset.view.bounds import min_max
from sparkdl_runner.data.parquet.arrow_schema import read_metadata

if TYPE_CHECKING:
    from sparkdl_runner.data import SparkDatasetConverter

_THREADS = 8


def extremes(
    converter: SparkDatasetConverter, names: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Returns each column's smallest and largest value, of those whose files all tell."""
    manifest, filesystem, directory = converter.open()

    def of_file(path: str) -> list[dict[str, tuple[float, float] | tuple[()] | None]]:
        with open_input(filesystem, f"{directory}/{path}") as stream:
            tail = footer_bytes(stream, path)
        metadata = read_metadata(tail)
        row_groups = []
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            chunks = [group.column(place) for place in range(group.num_columns)]
            by_name = {chunk.path_in_schema: chunk for chunk in chunks}
            row_groups.append({name: _range(by_name.get(name)) for name in names})
        return row_groups

    files = in_threads(of_file, [file.path for file in manifest.files if file.rows], _THREADS)
    groups = [group for file in files for group in file]
    limits = {}
    for name in names:
        ranges = [group[name] for group in groups]
        known = [pair for pair in ranges if pair]
        if known and None not in ranges:
            limits[name] = min(low for low, _ in known), max(high for _, high in known)
    return limits


def _range(chunk: pq.ColumnChunkMetaData | None) -> tuple[float, float] | tuple[()] | None:
    """The smallest and largest value; empty if all are null, None if it is not known."""
    statistics = None if chunk is None else chunk.statistics
    if statistics is None:
        return None
    if statistics.has_null_count and statistics.num_values == 0:
        return ()
    limits = min_max(statistics)
    if limits is None or not isinstance(limits[0], (bool, int, float)):
        return None
    return float(limits[0]), float(limits[1])

"""Finds the file that holds a null or a list of another length, once it is known that one does.

Only errors and warnings come here, so that reading a column again is no matter.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.parquet as pq
from pyarrow import fs

from sparkdl_runner.data.manifest import Manifest
from sparkdl_runner.data.observe import Observation, observe


def _observed_files(
    filesystem: fs.FileSystem, directory: str, manifest: Manifest, column: str
) -> Iterator[tuple[str, Observation]]:
    for file in manifest.files:
        seen = Observation()
        with filesystem.open_input_file(f"{directory}/{file.path}") as stream:
            parquet = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
            for batch in parquet.iter_batches(columns=[column], use_threads=False):
                observe(batch.column(0), seen)
        yield file.path, seen


def first_file_with_nulls(
    filesystem: fs.FileSystem, directory: str, manifest: Manifest, column: str
) -> str | None:
    """The first file with a null in ``column``, also with one inside of a list."""
    for path, seen in _observed_files(filesystem, directory, manifest, column):
        if seen.null_count:
            return path
    return None


def first_file_with_other_lengths(
    filesystem: fs.FileSystem, directory: str, manifest: Manifest, column: str
) -> tuple[str, str] | None:
    """The first file whose lists in ``column`` are not as long as those before.

    Returns:
        Its path, and its lengths by depth in words, such as ``"3 to 4"``.
    """
    before: list[tuple[int, int] | None] | None = None
    for path, seen in _observed_files(filesystem, directory, manifest, column):
        if not any(seen.extremes):
            continue
        ragged = any(pair is not None and pair[0] != pair[1] for pair in seen.extremes)
        if ragged or (before is not None and seen.extremes != before):
            words = [_in_words(pair) for pair in seen.extremes if pair is not None]
            return path, " of ".join(words)
        before = seen.extremes
    return None


def _in_words(pair: tuple[int, int]) -> str:
    low, high = pair
    return f"{low}" if low == high else f"{low} to {high}"

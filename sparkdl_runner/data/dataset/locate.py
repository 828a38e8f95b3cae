"""Finds the file that holds a null or a list of another length, once it is known that one does.

Only errors and warnings ask, so there is time to read a column again.
"""

from __future__ import annotations

from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.observe import Observation, observe
from sparkdl_runner.data.dataset.scan import scan


def first_file_with_nulls(dataset: Dataset, column: str) -> str | None:
    """The first file with a null in ``column``, also with one inside of a list."""
    for file in dataset.manifest.files:
        seen = Observation()
        for batch in scan(dataset.filesystem, dataset.path(file), [column]):
            observe(batch.column(0), seen)
            if seen.null_count:
                return file.path
    return None


def first_file_with_other_lengths(dataset: Dataset, column: str) -> tuple[str, str] | None:
    """The first file whose lists in ``column`` are not as long as those before.

    Returns:
        Its path, and its lengths by depth in words, as far as it was read, such as ``"3 to 4"``.
    """
    before: list[tuple[int, int] | None] | None = None
    for file in dataset.manifest.files:
        seen = Observation()
        for batch in scan(dataset.filesystem, dataset.path(file), [column]):
            observe(batch.column(0), seen)
            if not any(seen.extremes):
                continue
            ragged = any(pair is not None and pair[0] != pair[1] for pair in seen.extremes)
            if ragged or (before is not None and seen.extremes != before):
                words = [_in_words(pair) for pair in seen.extremes if pair is not None]
                return file.path, " of ".join(words)
        if any(seen.extremes):
            before = seen.extremes
    return None


def _in_words(pair: tuple[int, int]) -> str:
    low, high = pair
    return f"{low}" if low == high else f"{low} to {high}"

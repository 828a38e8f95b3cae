"""Counts nulls and measures lists in Arrow arrays: what Parquet's footers do not say.

Once it is known that there is a null, or a list of another length, the file that holds it is found
by reading the column again: only errors and warnings ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs

from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.footers import in_threads
from sparkdl_runner.data.parquet.scan import scan
from sparkdl_runner.data.parquet.sizes import is_variable, row_sizes
from sparkdl_runner.tensors.arrays import is_list

_SCANS = 4
"""Files whose columns are read together: with a few batches each, some 100 MiB."""

_VECTOR_FIELDS = {"type", "size", "indices", "values"}
_IMAGE_FIELDS = {"origin", "height", "width", "nChannels", "mode", "data"}


@dataclass(kw_only=True)
class Observation:
    """Nulls, and the shortest and longest list at each depth, over any number of arrays."""

    null_count: int = 0
    extremes: list[tuple[int, int] | None] = field(default_factory=list)
    """For each depth, from the outside in; None before the first list."""
    decoded_bytes: int = 0
    most_row_bytes: int = 0

    def see(self, rows: pa.Array) -> None:
        """Adds an array of a column's rows."""
        observe(rows, self)
        if is_variable(rows.type) and len(rows):
            sizes = row_sizes(rows)
            self.decoded_bytes += int(sizes.sum())
            self.most_row_bytes = max(self.most_row_bytes, int(sizes.max()))

    def see_lengths(self, depth: int, lengths: pa.Array) -> None:
        """Notes the lengths of lists at ``depth``, without nulls."""
        while len(self.extremes) <= depth:
            self.extremes.append(None)
        extremes = pc.min_max(lengths).as_py()
        if extremes["min"] is None:
            return
        before = self.extremes[depth] or (extremes["min"], extremes["max"])
        self.extremes[depth] = (min(before[0], extremes["min"]), max(before[1], extremes["max"]))

    def merge(self, other: Observation) -> None:
        """Adds what was seen elsewhere."""
        self.null_count += other.null_count
        self.decoded_bytes += other.decoded_bytes
        self.most_row_bytes = max(self.most_row_bytes, other.most_row_bytes)
        for depth, pair in enumerate(other.extremes):
            self.see_lengths(depth, pa.array(pair or [], pa.int64()))

    def lengths(self, depth: int) -> tuple[int | None, ...]:
        """``[depth]``: the one length of all lists, or None; 0 where there was no list at all."""
        pairs = [pair or (0, 0) for pair in (self.extremes + [None] * depth)[:depth]]
        return tuple(low if low == high else None for low, high in pairs)


def hint_of(arrow_type: pa.DataType) -> str | None:
    """``vector`` or ``image`` for the structs that Spark stores for those two, else None."""
    if pa.types.is_struct(arrow_type):
        names = {arrow_type.field(index).name for index in range(arrow_type.num_fields)}
        if names == _VECTOR_FIELDS:
            return "vector"
        if names == _IMAGE_FIELDS:
            return "image"
    return None


def depth_of(arrow_type: pa.DataType) -> int:
    """How many lengths a value of the type has: see ``ColumnInfo.list_lengths``."""
    hint = hint_of(arrow_type)
    if hint is not None:
        return 3 if hint == "image" else 1
    if is_list(arrow_type):
        return 1 + depth_of(arrow_type.value_type)
    return 0


def observe(array: pa.Array, into: Observation, depth: int = 0) -> None:
    """Adds the nulls and list lengths of ``array`` to ``into``."""
    into.null_count += array.null_count
    arrow_type = array.type
    if is_list(arrow_type):
        into.see_lengths(depth, pc.list_value_length(array))
        observe(pc.list_flatten(array), into, depth + 1)
    elif hint_of(arrow_type) == "vector":
        dense = pc.equal(pc.struct_field(array, "type"), 1)
        length = pc.list_value_length(pc.struct_field(array, "values"))
        into.see_lengths(depth, pc.if_else(dense, length, pc.struct_field(array, "size")))
    elif hint_of(arrow_type) == "image":
        for offset, name in enumerate(("height", "width", "nChannels")):
            into.see_lengths(depth + offset, pc.struct_field(array, name))


def observe_files(
    filesystem: pa.fs.FileSystem,
    directory: str,
    files: Sequence[str],
    names: Sequence[str],
    threads: int,
) -> dict[str, Observation]:
    """Reads columns of all files for what the footers do not say of them."""
    result = {name: Observation() for name in names}
    if names:
        for seen in in_threads(
            lambda path: _observe_file(filesystem, f"{directory}/{path}", names),
            files,
            min(threads, _SCANS),
        ):
            for name, observation in seen.items():
                result[name].merge(observation)
    return result


def _observe_file(
    filesystem: pa.fs.FileSystem, path: str, names: Iterable[str]
) -> dict[str, Observation]:
    seen = {name: Observation() for name in names}
    for batch in scan(filesystem, path, list(seen)):
        for name, observation in seen.items():
            observation.see(batch.column(name))
    return seen


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

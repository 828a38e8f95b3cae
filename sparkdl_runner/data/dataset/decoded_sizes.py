"""The decoded sizes of a data set's columns: from its footers, or from a sample of its values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs

from sparkdl_runner.data.dataset.footers import in_threads
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.parquet.sample import Sizes, sample
from sparkdl_runner.data.parquet.sizes import leaf_widths
from sparkdl_runner.data.parquet.too_large import MOST_BYTES, TOO_LARGE, has_a_limit

_MOST_GROUPS, _MOST_CHUNKS = 64, 4096
"""Row groups that are sampled, evenly spread, and column chunks in them."""


class SizedFile(NamedTuple):
    """The decoded sizes of a file's columns, as far as its footer has them."""

    path: str
    rows: Sequence[int]
    """Of each row group; 0 for those that do not count."""
    decoded_bytes: Mapping[str, Sequence[int | None]]
    """See ``Footer.decoded_bytes``."""
    names: Mapping[str, str] = MappingProxyType({})
    """The names in the file of columns that have another one there."""


class DecodedSizes:
    """The decoded sizes of columns: from the footers, and from a sample where those do not say.

    What cannot be read is not known: who reads that column is told, and nobody may want it.
    """

    def __init__(
        self, filesystem: pa.fs.FileSystem, directory: str, files: Sequence[SizedFile], threads: int
    ) -> None:
        self._directory, self._files = directory, files
        unknown = [
            (number, index, names)
            for number, file in enumerate(files)
            for index, rows in enumerate(file.rows)
            if (names := [n for n, of in file.decoded_bytes.items() if of[index] is None and rows])
        ]
        columns = max((len(names) for _, _, names in unknown), default=1)
        most = min(len(unknown), max(1, min(_MOST_GROUPS, _MOST_CHUNKS // columns)))
        places = np.unique(np.linspace(0, len(unknown) - 1, most).astype(int))
        self._sampled: dict[tuple[int, int], dict[str, Sizes]] = {}

        def take(place: int) -> None:
            number, index, names = unknown[place]
            file = files[number]
            there = {file.names.get(name, name): name for name in names}
            sampled = sample(filesystem, f"{directory}/{file.path}", index, list(there))
            self._sampled[number, index] = {there[name]: size for name, size in sampled.items()}

        in_threads(take, places.tolist(), threads)

    def of(
        self,
        column: pa.Field,
        lengths: Sequence[int | None],
        decoded_bytes: Mapping[str, int],
        most_row_bytes: Mapping[str, int],
    ) -> dict[str, int | None]:
        """The fields ``decoded_bytes``, ``group_row_bytes`` and ``most_row_bytes`` of a column.

        Args:
            column: The column's field.
            lengths: Its ``list_lengths``.
            decoded_bytes: By column, where somebody has counted them all.
            most_row_bytes: Likewise.
        """
        if not all(column.name in file.decoded_bytes for file in self._files):
            return {}
        seen = self._by_group(column.name)
        known = [(size.total, rows) for size, rows in seen if size is not None]
        known_rows = sum(rows for _, rows in known)
        rows = sum(rows for _, rows in seen)
        total = decoded_bytes.get(column.name)
        if total is None and known_rows == rows:
            total = sum(size for size, _ in known)
        elif total is None and known:
            total = sum(size for size, _ in known) * rows // known_rows
        most = most_row_bytes.get(column.name)
        widths = leaf_widths(column.type)
        shape = [length for length in (*widths, *lengths) if length is not None]
        if most is None and len(widths) == 1 and len(shape) == 1 + len(lengths):
            most = math.prod(shape)
        largest = [size.most for size, _ in seen if size is not None and size.most is not None]
        if most is None and len(largest) == len(seen):
            most = max(largest, default=0)
        means = [-(-size // rows) for size, rows in known]
        if total is not None:
            means.append(-(-total // max(1, rows)))
        return {
            "decoded_bytes": total,
            "group_row_bytes": max(means, default=None),
            "most_row_bytes": most,
        }

    def refuse_too_large(self, column: pa.Field) -> None:
        """Raises a DatasetError if a row of the column is known to be larger than Arrow decodes."""
        if not has_a_limit(column.type):
            return
        for number, file in enumerate(self._files):
            for index, size in enumerate(file.decoded_bytes.get(column.name, ())):
                sampled = self._sampled.get((number, index), {}).get(column.name)
                known = sampled.most if sampled else size and size // max(1, file.rows[index])
                if known is not None and known > MOST_BYTES:
                    place = f"{self._directory}/{file.path}, row group {index}"
                    raise DatasetError(f"{place}, column {column.name!r}: {TOO_LARGE}")

    def _by_group(self, name: str) -> list[tuple[Sizes | None, int]]:
        """The known sizes of each row group that has rows, and its number of rows."""
        sizes_and_rows = []
        for number, file in enumerate(self._files):
            for index, size in enumerate(file.decoded_bytes[name]):
                exact = None if size is None else Sizes(size, None)
                sizes = self._sampled.get((number, index), {}).get(name, exact)
                sizes_and_rows.append((sizes, file.rows[index]))
        return [(sizes, rows) for sizes, rows in sizes_and_rows if rows]

"""The row groups of a data set, as arrays: there may be a million of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkdl_runner.foreign_file import ForeignFileError, build


@dataclass(frozen=True, kw_only=True, eq=False)
class RowGroups:
    """All row groups of a data set, in the order of its files.

    Attributes:
        file: int32 ``[row_groups]``, which file each belongs to.
        index_in_file: int32 ``[row_groups]``.
        rows: int64 ``[row_groups]``.
        size_bytes: int64 ``[row_groups]``, encoded but not compressed.
    """

    file: npt.NDArray[np.int32]
    index_in_file: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, per_file: Iterable[Iterable[tuple[int, int]]]) -> RowGroups:
        """Builds the arrays from ``(rows, size_bytes)`` of each row group of each file."""
        entries = [
            (file, index, rows, size_bytes)
            for file, groups in enumerate(per_file)
            for index, (rows, size_bytes) in enumerate(groups)
        ]
        table = np.array(entries, dtype=np.int64).reshape(len(entries), 4)
        return cls(
            file=table[:, 0].astype(np.int32),
            index_in_file=table[:, 1].astype(np.int32),
            rows=table[:, 2].copy(),
            size_bytes=table[:, 3].copy(),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def to_json(self) -> dict[str, list[int]]:
        """Returns plain values for ``json.dumps``."""
        return {name: getattr(self, name).tolist() for name in ("file", "rows", "size_bytes")}

    @classmethod
    def from_json(cls, fields: Any, files: int) -> RowGroups:
        """Rebuilds what ``to_json`` returned, which somebody else may have written.

        Raises:
            ForeignFileError: They are not the row groups of so many files.
        """
        found = build(_Fields, fields)
        if not len(found.file) == len(found.rows) == len(found.size_bytes):
            raise ForeignFileError("some of its row groups lack something")
        ends = (0, *found.file, files - 1) if found.file else ()
        if any(file > following for file, following in itertools.pairwise(ends)):
            raise ForeignFileError("its row groups are not in the order of its files")
        for numbers in (found.rows, found.size_bytes):
            if min(numbers, default=0) < 0 or sum(numbers) >= 2**63:
                raise ForeignFileError("its row groups have impossible sizes")
        file = np.array(found.file, dtype=np.int32)
        starts = np.searchsorted(file, file)  # where each row group's own file begins
        return cls(
            file=file,
            index_in_file=(np.arange(len(file)) - starts).astype(np.int32),
            rows=np.array(found.rows, dtype=np.int64),
            size_bytes=np.array(found.size_bytes, dtype=np.int64),
        )


@dataclass(frozen=True, kw_only=True)
class _Fields:
    file: list[int]
    rows: list[int]
    size_bytes: list[int]

"""The row groups of a data set, as arrays: there may be a million of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparkdl_runner.base.foreign_file import ForeignFileError, build
from sparkdl_runner.data.dataset.files import pack, unpack


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
    def of(cls, counts: Sequence[int], rows: Sequence[int], size_bytes: Sequence[int]) -> RowGroups:
        """Builds the arrays from the number of row groups in each file, and the numbers of each."""
        file = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return cls(
            file=file,
            index_in_file=_index_in_file(file),
            rows=np.array(rows, np.int64),
            size_bytes=np.array(size_bytes, np.int64),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = {name: getattr(self, name) for name in _TYPES}
        return _unpacked, (len(self), {name: pack(array) for name, array in arrays.items()})

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for ``json.dumps``."""
        names = ("file", "rows", "size_bytes")
        return {"count": len(self), **{name: pack(getattr(self, name)) for name in names}}

    @classmethod
    def from_json(cls, fields: Any, files: int) -> RowGroups:
        """Rebuilds the result of ``to_json``, which may be foreign.

        Raises:
            ForeignFileError: They are not the row groups of so many files.
        """
        packed = build(_Fields, fields)
        file, rows, size_bytes = (
            unpack(text, _TYPES[name], packed.count)
            for name, text in (
                ("file", packed.file),
                ("rows", packed.rows),
                ("size_bytes", packed.size_bytes),
            )
        )
        if len(file) and (file[0] < 0 or file[-1] >= files or (np.diff(file) < 0).any()):
            raise ForeignFileError("its row groups are not in the order of its files")
        for numbers in (rows, size_bytes):
            if (numbers < 0).any() or sum(numbers.tolist()) >= 2**63:
                raise ForeignFileError("its row groups have impossible sizes")
        return cls(
            file=file,
            index_in_file=_index_in_file(file),
            rows=rows,
            size_bytes=size_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class _Fields:
    count: int
    file: str
    rows: str
    size_bytes: str


_TYPES = {"file": np.int32, "index_in_file": np.int32, "rows": np.int64, "size_bytes": np.int64}


def _index_in_file(file: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    starts = np.searchsorted(file, file)  # where each row group's own file begins
    return (np.arange(len(file)) - starts).astype(np.int32)


def _unpacked(count: int, arrays: dict[str, str]) -> RowGroups:
    return RowGroups(**{name: unpack(text, _TYPES[name], count) for name, text in arrays.items()})

"""One snapshot of a table: its files, and what they lack or hold beyond its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl_runner.data.errors import DatasetError

LAKE_EXTRA = "pip install 'sparkdl-runner[lake]'"


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column as the table's own schema has it."""

    name: str
    type: pa.DataType
    file_names: tuple[str, ...]
    """The names of the column in files without column numbers."""
    field_id: int | None = None
    """The number of the column in files, if the format has numbers."""
    default: Any = None
    """Its value in files that were written before there was such a column."""


def has_sure_bounds(kind: pa.DataType) -> bool:
    """Whether tables keep the bounds of such a column as they are."""
    return bool(pa.types.is_integer(kind) or pa.types.is_date32(kind))


@dataclass(frozen=True, kw_only=True, eq=False)
class TableFile:
    """A Parquet file of the snapshot."""

    path: str
    """Relative to the table's folder."""
    partition: Mapping[str, Any] = field(default_factory=dict)
    """Values of the partition's columns, by the name of the column in the table."""
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Lowest and highest value of columns, as far as the table itself says them and they are sure:
    of whole numbers and days. Others may be rounded."""
    deleted: npt.NDArray[np.int64] | None = None
    """Numbers of the rows of the file that were deleted, sorted; None for none."""

    def without_deleted(self, first: int, rows: int) -> npt.NDArray[np.bool_] | None:
        """Marks the rows of a row group that were not deleted.

        Args:
            first: The number of its first row in the file.
            rows: How many it has.

        Returns:
            ``[rows]``, True for a row that is left; None if no row was deleted.
        """
        if self.deleted is None:
            return None
        begin, end = np.searchsorted(self.deleted, [first, first + rows])
        if begin == end:
            return None
        keep = np.ones(rows, dtype=np.bool_)
        keep[self.deleted[begin:end] - first] = False
        return keep


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """One snapshot of a table, or the files of a folder."""

    title: str
    """``version 3 of the Delta table file:///…``."""
    advice: str
    """Advice for a file that is gone."""
    columns: tuple[TableColumn, ...]
    files: tuple[TableFile, ...]

    def select(self, names: list[str] | None) -> tuple[TableColumn, ...]:
        """The columns of these names, in this order; all for None.

        Raises:
            ValueError: There is no such column, or one is named twice.
        """
        by_name = {column.name: column for column in self.columns}
        if names is None:
            return self.columns
        for name in names:
            if name not in by_name:
                known = ", ".join(by_name)
                raise ValueError(f"columns names {name!r}, which is none of {known}.")
        if not names or len(set(names)) < len(names):
            raise ValueError(f"columns is {names!r}: name at least one column, and each once.")
        return tuple(by_name[name] for name in names)


def missing_package(package: str, what: str, reader: str) -> DatasetError:
    """The error for a table whose reader is not installed."""
    return DatasetError(
        f"{what}, and reading that in place needs {package}: run {LAKE_EXTRA}, or pass "
        f"{reader}, which is converted."
    )

"""Reads rows by their numbers, and keeps the row groups that were read last."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl_runner.data.batches.chunks import entries
from sparkdl_runner.data.decode.columns import DenseColumn, ImageColumn, Layout, PaddedColumn
from sparkdl_runner.data.errors import DatasetError
from sparkdl_runner.data.order.permutation import IntArray
from sparkdl_runner.data.read.reader import RowGroupReader
from sparkdl_runner.tensors.arrays import Array, validity
from sparkdl_runner.tensors.images import BadImageError, decode_image
from sparkdl_runner.tensors.ragged import Ragged

_READ_ROWS, _READ_BYTES = 8192, 8 << 20


@dataclass(frozen=True, eq=False)
class _Group:
    """One row group, by name of output or, where rows differ in length, of column."""

    dense: dict[str, Array]
    kept: dict[str, pa.Array]

    @property
    def size_bytes(self) -> int:
        arrays = [*self.dense.values(), *self.kept.values()]
        return sum(int(array.nbytes) for array in arrays)


class RowsByNumber:
    """Rows of a data set by their numbers, in one process and one thread.

    Args:
        layout: The columns.
        reader: Of the data set's files.
        group_rows: int64 ``[row_groups]``, rows of each.
        memory_budget_bytes: What the row groups that are kept may take. One is kept in any case.
    """

    def __init__(
        self,
        layout: Layout,
        reader: RowGroupReader,
        group_rows: IntArray,
        memory_budget_bytes: int,
    ) -> None:
        self._layout, self._reader = layout, reader
        self._ends = np.cumsum(group_rows)
        self._limit_bytes = memory_budget_bytes
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self.size_bytes = 0
        """The size of the cached row groups."""

    def take(self, numbers: IntArray) -> dict[str, Any]:
        """The rows of these numbers ``[n]``, each row group read once.

        Returns:
            By name: NumPy values ``[n, *shape]``; or a list of n texts, bytes, lists, or NumPy
            values ``[length]``.

        Raises:
            DatasetError: A file is gone or changed, or an image does not decode.
        """
        group_of = np.searchsorted(self._ends, numbers, side="right")
        order = np.argsort(group_of, kind="stable")
        dense: dict[str, list[Array]] = {}
        kept: dict[str, list[pa.Array]] = {}
        for number in np.unique(group_of).tolist():
            group = self._group(number)
            begin = int(self._ends[number - 1]) if number else 0
            rows = numbers[group_of == number] - begin
            for name, array in group.dense.items():
                dense.setdefault(name, []).append(array[rows])
            for name, array in group.kept.items():
                kept.setdefault(name, []).append(array.take(pa.array(rows)))
        back = np.argsort(order)  # From the order of row groups to that of ``numbers``.
        result: dict[str, Any] = {
            name: np.concatenate(arrays)[back] for name, arrays in dense.items()
        }
        for column in self._layout.columns:
            if isinstance(column, DenseColumn):
                continue
            values_in_order = pa.concat_arrays(kept[column.name]).take(pa.array(back))
            if isinstance(column, ImageColumn):
                result.update(self._images(column, values_in_order, numbers))
            elif isinstance(column, PaddedColumn):
                names = [output.name for output in column.outputs]
                result.update(zip(names, column.finish(values_in_order), strict=True))
            else:
                values = entries(column, values_in_order)
                if isinstance(values, Ragged):
                    values = np.split(values.numbers, values.offsets[1:-1])
                result[column.name] = values
        return result

    def _images(self, column: ImageColumn, images: pa.Array, numbers: IntArray) -> dict[str, Array]:
        size = column.size
        pixels = np.zeros((len(images), *size.shape), dtype=np.uint8)
        for row, value in enumerate(images):
            if value.is_valid:
                try:
                    decode_image(value.as_buffer(), size.mode, pixels[row], size.exif)
                except BadImageError as error:
                    raise DatasetError(
                        f"row {int(numbers[row]):,}, column {column.name!r}: it is {error}. "
                        "Drop the row before converting, or leave it out of the sampler."
                    ) from error
        mask = (validity(images),) if column.is_masked else ()
        return dict(zip((output.name for output in column.outputs), (pixels, *mask), strict=True))

    def _group(self, number: int) -> _Group:
        if number in self._groups:
            self._groups.move_to_end(number)
            return self._groups[number]
        group = self._read(number)
        self.size_bytes += group.size_bytes
        self._groups[number] = group
        while self.size_bytes > self._limit_bytes and len(self._groups) > 1:
            self.size_bytes -= self._groups.popitem(last=False)[1].size_bytes
        return group

    def _read(self, number: int) -> _Group:
        rows = int(self._ends[number]) - (int(self._ends[number - 1]) if number else 0)
        columns = self._layout.columns
        values: list[list[Any]] = [[] for _ in columns]
        at_a_time = max(1, min(_READ_ROWS, _READ_BYTES // self._layout.row_bytes))
        for decoded in self._reader.stream(number, columns, rows=at_a_time, until=rows):
            for column, arrays, value in zip(columns, values, decoded.columns, strict=True):
                # Arrow's memory is used again for the next rows, so copy what only refers to it.
                dense = isinstance(column, DenseColumn)
                copied = [np.array(array[: decoded.rows]) for array in value] if dense else value
                arrays.append(copied)
        group = _Group({}, {})
        for column, arrays in zip(columns, values, strict=True):
            if isinstance(column, DenseColumn):
                for output, parts in zip(column.outputs, zip(*arrays, strict=True), strict=True):
                    group.dense[output.name] = np.concatenate(parts)
            else:
                group.kept[column.name] = pa.concat_arrays(arrays)
        return group

    def close(self) -> None:
        """Closes the files, and lets the row groups go."""
        self._reader.close()
        self._groups.clear()
        self.size_bytes = 0

"""The rows of one block, in memory or being read."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl_runner.data.order.permutation import IntArray
from sparkdl_runner.data.order.plan import Block
from sparkdl_runner.tensors.arrays import as_numpy, is_list


@dataclass(kw_only=True, eq=False)
class LoadedBlock:
    """A block whose rows are in memory, or being read."""

    epoch: int
    block: Block
    pages: IntArray
    variable: dict[str, list[list[pa.Array]]]
    """For each column of variable length, the arrays of rows of each piece."""
    pieces_left: int
    """Pieces that are still to be read."""
    variable_bytes: int = 0
    """Bytes of ``variable``, as far as it is read."""
    reads: list[Future[None]] = field(default_factory=list)
    order: IntArray = field(init=False)
    """int64 ``[rows]``, the permutation of the block, once read; empty if no column is variable."""
    place: IntArray | None = field(init=False)
    """What ``Arena.shuffle`` returned, likewise; None for rows that are as they were read."""

    @property
    def end(self) -> int:
        """The block's end in its lane."""
        return self.block.position + self.block.rows

    def rows(self, name: str) -> pa.Array:
        """``[rows]`` of a column of variable length, in the order in which they were read."""
        arrays = [array for piece in self.variable[name] for array in piece]
        if len(arrays) != 1:
            arrays = [pa.concat_arrays(arrays)]  # It would copy even a single one.
            self.variable[name] = [arrays]
        return arrays[0]

    def values(self, name: str, rows: IntArray) -> list[pa.Buffer | None]:
        """Some rows of a column of bytes, where they lie; None for a null.

        Args:
            name: The column's.
            rows: int64 ``[n]``, in the order in which they were read.
        """
        arrays = [array for piece in self.variable[name] for array in piece]
        ends = np.cumsum([len(array) for array in arrays])
        places = np.searchsorted(ends, rows, side="right").tolist()
        return [
            arrays[place][row - int(ends[place])].as_buffer()  # counted from the array's end
            for place, row in zip(places, rows.tolist(), strict=True)
        ]

    def lengths(self, name: str) -> IntArray:
        """int64 ``[rows]``: of a column of variable length, by the order in which rows were read.

        Bytes of a row, or the length of its list of texts; 0 for a null.
        """
        arrays = [array for piece in self.variable[name] for array in piece]
        measure = pc.list_value_length if is_list(arrays[0].type) else pc.binary_length
        lengths = [as_numpy(pc.fill_null(measure(array), 0)) for array in arrays]
        return np.concatenate(lengths).astype(np.int64)

    def wait(self) -> None:
        """Waits for the rows; raises what reading them raised."""
        for read in self.reads:
            read.result()

"""Where the rows of a chunk come from: for messages, and for random numbers of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparkdl_runner.data.order.permutation import IntArray
from sparkdl_runner.data.order.plan import Block, Order


@dataclass(frozen=True, kw_only=True, eq=False)
class Origins:
    """The rows of a chunk, which are interleaved step by step.

    Attributes:
        order: Of the loader.
        step: The chunk's first step.
        lanes: Those of this rank.
        blocks: By lane, the blocks in use, each with its permutation.
        kept: int64 ``[rows]``: which rows the chunk has, of those that its steps would have if no
            lane had ended; None for all.
    """

    order: Order
    step: int
    lanes: Sequence[int]
    blocks: Sequence[Sequence[tuple[Block, IntArray]]]
    kept: IntArray | None

    def place(self, row: int) -> int:
        """A row's place in its epoch, which is the same at any number of ranks."""
        step, lane, offset = self._split(row)
        return (step * self.order.lanes + self.lanes[lane]) * self.order.lane_batch + offset

    def source(self, row: int) -> tuple[int, int]:
        """The row group that a row was read from, and its number there."""
        step, lane, offset = self._split(row)
        position = step * self.order.lane_batch + offset
        for block, order in self.blocks[lane]:
            if block.position <= position < block.position + block.rows:
                number = int(order[position - block.position])
                for piece in block.pieces:
                    if number < piece.rows:
                        return piece.group, piece.start + number
                    number -= piece.rows
        raise IndexError(f"row {row} fills up a batch: it comes from no row group")

    def _split(self, row: int) -> tuple[int, int, int]:
        """The row's step, its lane's index here, and its number among the lane's rows."""
        row = row if self.kept is None else int(self.kept[row])
        in_step, offset = divmod(row, self.order.lane_batch)
        step, lane = divmod(in_step, len(self.lanes))
        return self.step + step, lane, offset

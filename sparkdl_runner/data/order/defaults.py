"""Lanes, blocks and windows that an order has by default: by the data alone.

It does not depend on memory, so that all machines have one order. The figures are such that one
rank can read any table within 512 MiB, and most within 64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparkdl_runner.data.order.permutation import IntArray

MOST_LANES = 8
"""Lanes that one rank reads side by side."""
MOST_WINDOW_GROUPS = 32
"""Row groups that one lane reads side by side. A batch from so many has 9.7 of 10 values of a
column that the table is sorted by."""
MOST_BLOCK_ROWS = 1 << 17
"""Larger blocks mix no more row groups, and the order of their rows outgrows the cache."""
MOST_BLOCK_GROUPS = 32
"""Row groups that a block takes of small ones: so many are read before the first batch."""
_OPEN_BYTES = 64 << 20
"""Row groups that are partly read take about so much, those of the next windows included."""
_ALL_OPEN_BYTES = 80 << 20
"""Where all row groups take no more, all are: whole lanes mix, and no next window is open."""
_LEAST_OPEN = 4
"""Row groups that mix, also where they take more."""
_BLOCKS_BYTES = 16 << 20
"""Blocks in use, and for each the next one."""
_PLACE_BYTES = 16
"""Bytes for each row in memory beside its values: its place in the order."""


@dataclass(frozen=True, kw_only=True)
class DefaultOrder:
    """How a data set is mixed by default."""

    most_lanes: int
    """Lanes that one rank reads side by side."""
    block_rows: int
    """See ``Order``."""
    window_groups: int
    """See ``Order``."""

    @classmethod
    def of(
        cls,
        group_rows: IntArray,
        *,
        row_bytes: int,
        open_group_bytes: int,
        shuffle: bool = True,
    ) -> DefaultOrder:
        """That of a data set.

        Args:
            group_rows: ``[row_groups]``, rows of each.
            row_bytes: Of a row of all columns, decoded.
            open_group_bytes: Of a row group that is partly read.
            shuffle: Whether rows are shuffled.
        """
        groups = max(1, int(np.count_nonzero(group_rows)))
        most_open = _OPEN_BYTES // (3 * open_group_bytes // 2 or 1)
        # A lane begins and ends in the middle of a row group.
        are_all_open = (groups + MOST_LANES) * open_group_bytes <= _ALL_OPEN_BYTES
        if are_all_open:
            most_open = max(most_open, groups)
        most_lanes = max(_LEAST_OPEN, min(MOST_LANES, most_open))
        block_bytes = _BLOCKS_BYTES // 2 // most_lanes
        row_size = row_bytes + _PLACE_BYTES
        mean_rows = max(1, int(group_rows.sum()) // groups)
        most_rows = min(MOST_BLOCK_ROWS, MOST_BLOCK_GROUPS * mean_rows)
        block_rows = max(1, min(most_rows, block_bytes // row_size))
        if not shuffle:
            return cls(most_lanes=1, block_rows=block_rows, window_groups=1)
        of_lane = most_open // most_lanes
        if are_all_open:  # Where row groups are uneven, some lanes have half as many more of them.
            of_lane = 1 + -(-3 * groups // (2 * MOST_LANES))
        side_by_side = min(MOST_WINDOW_GROUPS, of_lane)
        # Row groups that are smaller than a block's piece are read whole, and so cost nothing open.
        window_groups = max(1, side_by_side, -(-block_rows // mean_rows))
        return cls(most_lanes=most_lanes, block_rows=block_rows, window_groups=window_groups)

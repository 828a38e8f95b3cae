"""``converter.mixing``: how well batches will mix, in words, before a row is read."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.order.lanes import choose_lanes
from sparkdl_runner.data.order.mixing import LABELS, MixingFigures, measure
from sparkdl_runner.data.order.plan import Order
from sparkdl_runner.data.order.shard import global_batch
from sparkdl_runner.data.read.costs import default_order

GOOD_LABELS = 0.9
"""The share of the labels of a fully shuffled batch from which mixing counts as good."""
GOOD_DEVIATION = 1.2
"""Times the deviation of a global batch after a full shuffle."""
_ENOUGH_GROUPS = 32
_SMALLEST_GROUP_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How well the batches of a loader mix the rows; ``str()`` says it in words."""

    figures: MixingFigures
    """For a table that is sorted by a column of 10 values. Other orders of rows mix better."""
    batch_size: int
    """Rows of one rank in a step."""
    row_groups: int
    mean_group_bytes: int
    shuffle_seed: int | None
    """The seed of Spark's shuffle of the rows; None if there was none."""

    @classmethod
    def of(cls, manifest: Manifest, order: Order, world_size: int) -> Mixing:
        """The mixing of an order on so many ranks."""
        groups = manifest.row_groups
        with_rows = int((groups.rows > 0).sum())
        return cls(
            figures=measure(order, world_size),
            batch_size=order.global_batch_size // world_size,
            row_groups=with_rows,
            mean_group_bytes=int(groups.size_bytes.sum()) // max(1, with_rows),
            shuffle_seed=manifest.shuffle_seed,
        )

    @property
    def is_good(self) -> bool:
        """Whether batches are about as mixed as after a full shuffle, even of a sorted table."""
        mix = self.figures
        return self.shuffle_seed is not None or (
            mix.batch_labels >= GOOD_LABELS * mix.shuffled_batch_labels
            and mix.global_deviation <= GOOD_DEVIATION * mix.shuffled_global_deviation
        )

    def __str__(self) -> str:
        if self.shuffle_seed is not None:
            return (
                f"Spark shuffled the rows when it converted them (shuffle_seed="
                f"{self.shuffle_seed}): every batch is a fair sample of the table."
            )
        mix = self.figures
        text = (
            f"A rank's batch of {self.batch_size:,} rows comes from about {mix.batch_groups:.0f} "
            f"of {self.row_groups:,} row groups. If the table is sorted by a column of {LABELS} "
            f"values, the batch holds {mix.batch_labels:.1f} of them on average, and "
            f"{mix.shuffled_batch_labels:.1f} after a full shuffle; their shares in a global "
            f"batch differ from the table's by {100 * mix.global_deviation:.1f}%, and by "
            f"{100 * mix.shuffled_global_deviation:.1f}% after a full shuffle."
        )
        if self.is_good:
            return f"{text} That is about as good as a full shuffle."
        return f"{text} {self._advice()}"

    def _advice(self) -> str:
        advice = "If the table is sorted, convert it with shuffle_seed=0"
        smaller = int(self.mean_group_bytes * self.figures.batch_groups / _ENOUGH_GROUPS)
        if _SMALLEST_GROUP_BYTES <= smaller < self.mean_group_bytes:
            advice += f", or with parquet_row_group_size_bytes={smaller:,} or less"
        return f"{advice}."


def mixing_of(
    dataset: Dataset, batch_size: int, num_ranks: int, window_row_groups: int | None
) -> Mixing:
    """The mixing of a loader with such arguments, and otherwise the default ones."""
    rows = global_batch(batch_size, None, num_ranks)
    manifest = dataset.manifest
    default = default_order(manifest)
    order = Order(
        group_rows=manifest.row_groups.rows,
        global_batch_size=rows,
        lanes=choose_lanes(None, rows, num_ranks, default.most_lanes),
        block_rows=default.block_rows,
        window_groups=whole_number("window_row_groups", window_row_groups) or default.window_groups,
    )
    return Mixing.of(manifest, order, num_ranks)

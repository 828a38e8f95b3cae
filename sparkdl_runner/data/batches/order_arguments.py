"""The arguments of a loader that the order of its rows follows from, and that order."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_runner.base.whole_number import whole_number
from sparkdl_runner.data.batches import expectations
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode.columns import Layout
from sparkdl_runner.data.order.lanes import choose_lanes
from sparkdl_runner.data.order.plan import TAILS, Order, Tail
from sparkdl_runner.data.order.shard import global_batch
from sparkdl_runner.data.read.costs import default_order
from sparkdl_runner.rank import rank_facts


@dataclass(frozen=True, kw_only=True)
class OrderArguments:
    """The caller's arguments of ``ArrowLoader``, by their names there.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.
    """

    batch_size: int | None
    global_batch_size: int | None
    num_epochs: int | None
    seed: int
    shuffle: bool
    tail: Tail
    lanes: int | None
    window_row_groups: int | None
    balance: str | None

    def __post_init__(self) -> None:
        for name in ("batch_size", "global_batch_size", "num_epochs", "lanes", "window_row_groups"):
            self._set_number(name)
        if self.tail not in TAILS:
            raise ValueError(f"tail is {self.tail!r}; expected one of {', '.join(TAILS)}.")
        seed = whole_number("seed", self.seed, least=0, most=(1 << 64) - 1) or 0
        object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "shuffle", bool(self.shuffle))
        if self.balance is not None and not self.shuffle:
            raise ValueError(
                f"balance={self.balance!r} moves rows between steps, and shuffle=False keeps them "
                "in order: give one of the two."
            )
        if self.window_row_groups is not None and not self.shuffle:
            raise ValueError(
                f"window_row_groups={self.window_row_groups} mixes row groups, and shuffle=False "
                "reads them in order: give one of the two."
            )

    def _set_number(self, name: str) -> None:
        """Makes a plain int of NumPy's."""
        object.__setattr__(self, name, whole_number(name, getattr(self, name)))

    def global_batch(self, world_size: int) -> int:
        """Rows that all ranks together get in a step.

        Raises:
            ValueError: Both sizes or none are given, or the ranks cannot share them evenly.
        """
        return global_batch(self.batch_size, self.global_batch_size, world_size)

    def order(self, manifest: Manifest, layout: Layout, rank: int, world_size: int) -> Order:
        """Decides the order of rows, and warns where it is not as one expects.

        Raises:
            ValueError: The arguments do not fit the data set or the ranks.
        """
        rows = self.global_batch(world_size)
        if self.balance is not None:
            layout.check_balance(self.balance)
        default = default_order(manifest, shuffle=self.shuffle)
        order = Order(
            group_rows=manifest.row_groups.rows,
            global_batch_size=rows,
            lanes=choose_lanes(self.lanes, rows, world_size, default.most_lanes),
            block_rows=default.block_rows,
            window_groups=self.window_row_groups or default.window_groups,
            seed=self.seed,
            balance=self.balance,
            shuffle=self.shuffle,
            wrap=self.tail == "wrap",
        )
        expectations.warn(manifest, layout, order, self.tail, rank, world_size)
        if self.shuffle:  # An unshuffled loader is one for evaluation.
            per_rank, steps = rows // world_size, order.steps(self.tail)
            rank_facts.note(
                batch_size_per_rank=per_rank, global_batch_size=rows, steps_per_epoch=steps
            )
        return order

"""The order that the loaders of all ranks go through: saved, resumed, and told to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sparkdl_runner.data.batches.order_arguments import OrderArguments
from sparkdl_runner.data.dataset.manifest import Manifest
from sparkdl_runner.data.decode.columns import Layout
from sparkdl_runner.data.order.state import LoaderState, Position
from sparkdl_runner.rank import loader_plans


class SharedOrder:
    """An order, and this rank's part of it.

    Made by the loader's constructor, whose caller gets its warnings.

    Args:
        arguments: What the order follows from.
        manifest: Describes the data set.
        layout: What is read of it.
        shard: This rank, and how many ranks share the rows.
        directory: The data set's place, to report with the order; None if it is not shared.

    Raises:
        ValueError: The arguments do not fit the data set or the ranks.
    """

    def __init__(
        self,
        arguments: OrderArguments,
        manifest: Manifest,
        layout: Layout,
        shard: tuple[int, int],
        directory: str | None,
    ) -> None:
        self._rank, self._world_size = shard
        self.order = arguments.order(manifest, layout, *shard)
        self.tail = arguments.tail
        self._arguments = arguments
        self._fingerprint = manifest.fingerprint
        self._directory = directory
        self._made_at = loader_plans.place_of_caller()

    @property
    def steps(self) -> int:
        """Steps of one epoch, the same on every rank."""
        return self.order.steps(self.tail)

    @property
    def rank_lanes(self) -> range:
        """The lanes that this rank reads."""
        lanes = self.order.lanes // self._world_size
        return range(self._rank * lanes, (self._rank + 1) * lanes)

    def state(self, position: Position) -> dict[str, Any]:
        """The entries of ``ArrowLoader.state_dict``."""
        return LoaderState.of(position, self.order, self.tail, self._fingerprint).to_dict()

    def resume(self, state: Mapping[str, Any]) -> LoaderState:
        """Goes on in the order of a state, on any number of ranks that divides its lanes.

        Raises:
            StateError: It is of another data set, seed, order or global batch size.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check(self.order, self.tail, self._fingerprint, self._world_size)
        self.order = loaded.order(self.order)
        return loaded

    def tell(self, position: Position) -> None:
        """Tells the driver, once, which settings must be equal in all ranks."""
        if self._directory is None:
            return
        directory, self._directory = self._directory, None
        order = {**self.state(position), "shard_count": self._world_size}
        del order["version"], order["first_epoch"]
        order["num_epochs"] = self._arguments.num_epochs
        loader_plans.tell(directory, self._made_at, order=order, arguments=asdict(self._arguments))

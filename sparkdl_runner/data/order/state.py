"""The state of a loader: a few numbers, equal on every rank, that a later process resumes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from sparkdl_runner.base.foreign_file import ForeignFileError, build
from sparkdl_runner.data.errors import StateError
from sparkdl_runner.data.order.plan import VERSION, Order, Tail


class Position(NamedTuple):  # A loader makes one for each batch: no class is made faster.
    """An epoch and a step in it."""

    epoch: int = 0
    step: int = 0
    """Steps of the epoch that are done."""
    first_epoch: int = 0
    """The epoch in which the current pass of ``num_epochs`` epochs began."""


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """The entries of ``ArrowLoader.state_dict``."""

    epoch: int
    step: int
    first_epoch: int
    fingerprint: str
    seed: int
    shuffle: bool
    tail: str
    global_batch_size: int
    lanes: int
    block_rows: int
    window_groups: int
    balance: str | None = None
    version: int = VERSION
    """That of the order."""

    @classmethod
    def of(cls, position: Position, order: Order, tail: str, fingerprint: str) -> LoaderState:
        """The state of a loader."""
        return cls(
            **position._asdict(),
            fingerprint=fingerprint,
            seed=order.seed,
            shuffle=order.shuffle,
            tail=tail,
            global_batch_size=order.global_batch_size,
            lanes=order.lanes,
            block_rows=order.block_rows,
            window_groups=order.window_groups,
            balance=order.balance,
            version=order.version,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON or ``torch.save``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> LoaderState:
        """Reads what ``to_dict`` returned.

        Raises:
            StateError: It is not the state of a loader.
        """
        if fields.get("version") == 1:
            raise StateError(
                f"the loader state is after step {fields.get('step')} of epoch "
                f"{fields.get('epoch')}, and was saved by an earlier sparkdl_runner, which had the "
                "rows in another order. Begin that epoch again, by loader.set_epoch("
                f"{fields.get('epoch')}), or end the training with the version that began it."
            )
        if fields.get("version") not in (2, VERSION):
            raise StateError(
                "this is not the state of a loader, or of another version of sparkdl_runner: "
                f"expected version 2 or {VERSION} among its entries, found {sorted(fields)}."
            )
        try:
            state = build(cls, dict(fields))
        except ForeignFileError as error:
            raise StateError(f"this is not the state of a loader: {error}.") from None
        counts = (state.epoch, state.step, state.first_epoch)
        sizes = (state.lanes, state.block_rows, state.window_groups)
        if min(counts) < 0 or min(sizes) < 1:
            raise StateError("the loader state counts below zero, or has no lanes: it was altered.")
        return state

    def order(self, current: Order) -> Order:
        """The order that goes on with this state: the loader's current one if it is the same."""
        names = ("lanes", "block_rows", "window_groups", "version")
        mine = {name: getattr(self, name) for name in names}
        if mine == {name: getattr(current, name) for name in names}:
            return current
        return replace(current, **mine)

    def check(self, order: Order, tail: Tail, fingerprint: str, world_size: int) -> None:
        """Checks that a loader which takes this state goes on with the same batches.

        Raises:
            StateError: It would not.
        """
        if self.fingerprint != fingerprint:
            raise StateError(
                f"the loader state is of another data set (fingerprint {self.fingerprint}, and "
                f"this one has {fingerprint}), or of the same rows in another order. Open the data "
                "set that it was saved for, or convert the same rows again in the same order."
            )
        for name, saved, expected in (
            ("seed", self.seed, order.seed),
            ("shuffle", self.shuffle, order.shuffle),
            ("tail", self.tail, tail),
            ("balance", self.balance, order.balance),
            ("global_batch_size", self.global_batch_size, order.global_batch_size),
        ):
            if saved != expected:
                raise StateError(
                    f"the loader state was saved with {name}={saved!r}, and this loader has "
                    f"{expected!r}: it could not go on with the same batches. Make the loader "
                    f"with {name}={saved!r}."
                )
        if self.step > order.steps(tail):
            raise StateError(
                f"the loader state is after step {self.step} of an epoch that has "
                f"{order.steps(tail)}: it was altered."
            )
        if self.lanes % world_size:
            raise StateError(
                f"the loader state was saved with {self.lanes} lanes, which {world_size} ranks "
                "cannot share evenly. Resume with a number of ranks that divides "
                f"{self.lanes}."
            )

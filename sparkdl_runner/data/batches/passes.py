"""A loader's place in its epochs, and the one iterator that moves it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator

from sparkdl_runner.data.batches.feed import Batch, Feed
from sparkdl_runner.data.order.state import LoaderState, Position


class Passes:
    """Iterates ``num_epochs`` epochs at a time, or without end where that is None."""

    def __init__(self, num_epochs: int | None) -> None:
        self.num_epochs = num_epochs
        self.position = Position()
        self._just_moved = False
        self._closed = False
        self._feed: Feed | None = None
        self._turn = 0
        # Weak, so that leaving a for loop ends the iteration.
        self._active: weakref.ref[Generator[Batch, None, None]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch, except right after ``resume`` of that epoch."""
        self.refuse_while_iterating("set_epoch")
        if not (self._just_moved and epoch == self.position.epoch):
            self.position = Position(epoch=epoch, first_epoch=epoch)

    def resume(self, state: LoaderState) -> None:
        """Moves to where a state was taken."""
        first_epoch = state.first_epoch
        if self.num_epochs is not None and state.epoch >= first_epoch + self.num_epochs:
            first_epoch = state.epoch  # It was saved by a loader with more epochs in a pass.
        self.position = Position(epoch=state.epoch, step=state.step, first_epoch=first_epoch)
        self._just_moved = True

    def iterate(
        self, open_feed: Callable[[Position, int | None], Feed], steps: int
    ) -> Generator[Batch, None, None]:
        """Returns an iterator to the end of the pass, which replaces the one before.

        Args:
            open_feed: Makes batches from a position on, up to, not including, an epoch.
            steps: Of one epoch.

        Raises:
            RuntimeError: The loader is closed.
        """
        if self._closed:
            raise RuntimeError("the loader is closed. Make a new one.")
        if self._feed is not None:
            self._feed.stop()  # Both would use the same memory.
        self._turn += 1
        iterator = self._run(self._turn, open_feed, steps)
        self._active = weakref.ref(iterator)
        return iterator

    def _run(
        self, turn: int, open_feed: Callable[[Position, int | None], Feed], steps: int
    ) -> Generator[Batch, None, None]:
        self._refuse_if_replaced(turn)
        end_epoch = None
        if self.num_epochs is not None:
            end_epoch = self.position.first_epoch + self.num_epochs
        feed = self._feed = open_feed(self.position, end_epoch)
        try:
            for epoch, step, batch in feed.batches():
                self._just_moved = False
                first = self.position.first_epoch
                done = step + 1
                pass_is_over = done == steps and epoch + 1 == end_epoch
                if done < steps:
                    self.position = Position(epoch, done, first)
                else:
                    first = epoch + 1 if pass_is_over else first
                    self.position = Position(epoch=epoch + 1, first_epoch=first)
                if pass_is_over:  # One who counts batches, as Lightning does, asks for no more.
                    self._active = None
                yield batch
                if pass_is_over:
                    return
                self._refuse_if_replaced(turn)
        finally:
            feed.stop()
            if turn == self._turn:
                self._feed = self._active = None

    def _refuse_if_replaced(self, turn: int) -> None:
        if turn != self._turn:
            raise RuntimeError(
                "this iterator was replaced by a later one: a loader has one place, not two. Use "
                "the later one, or make a second loader."
            )

    def refuse_while_iterating(self, what: str) -> None:
        """Raises a RuntimeError if an iteration is under way."""
        if self._active is not None and self._active() is not None:
            raise RuntimeError(
                f"{what} was called while the loader is being iterated: it has one place, not "
                "two. Let the first iteration end (or close() it), or make a second loader."
            )

    def close(self) -> None:
        """Ends an iteration under way; there is none after it."""
        iterator = self._active() if self._active is not None else None
        if iterator is not None:
            iterator.close()
        if self._feed is not None:
            self._feed.stop()
        self._feed = self._active = None
        self._closed = True

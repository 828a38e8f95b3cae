"""A loader's place in its epochs, and the one iterator that moves it.

Each iteration begins an epoch: the one after that in which the iteration before ended, early or
not. Only the first iteration after a state was loaded goes on in the middle of one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator

from sparkdl_runner.data.batch_iterator import CLOSED, REPLACED, BatchIterator
from sparkdl_runner.data.batches.batch_queue import Batch, BatchQueue
from sparkdl_runner.data.order.state import LoaderState, Position


class EpochIterator:
    """Iterates ``num_epochs`` epochs at a time, or without end where that is None."""

    def __init__(self, num_epochs: int | None) -> None:
        self.num_epochs = num_epochs
        self.position = Position()
        """After the batch that was handed out last."""
        self._is_resumed = False
        self._closed = False
        self._queue: BatchQueue | None = None
        # Weak, so that leaving a for loop ends the iteration.
        self._active: weakref.ref[BatchIterator] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch, except right after ``resume`` of that epoch."""
        self.refuse_while_iterating("set_epoch")
        if not (self._is_resumed and epoch == self.position.epoch):
            self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        self.position = Position(epoch=epoch, first_epoch=epoch)
        self._is_resumed = False

    def resume(self, state: LoaderState) -> None:
        """Moves to where a state was taken."""
        first_epoch = state.first_epoch
        if self.num_epochs is not None and state.epoch >= first_epoch + self.num_epochs:
            first_epoch = state.epoch  # It was saved by a loader with more epochs in a pass.
        self.position = Position(epoch=state.epoch, step=state.step, first_epoch=first_epoch)
        self._is_resumed = True

    def iterate(
        self, open_queue: Callable[[Position, int | None], BatchQueue], steps: int
    ) -> BatchIterator:
        """Returns an iterator over the next pass, or the rest of one that was resumed.

        It replaces the iterator before.

        Args:
            open_queue: Makes batches from a position on, up to, not including, an epoch.
            steps: Of one epoch.

        Raises:
            RuntimeError: The loader is closed.
        """
        if self._closed:
            raise RuntimeError(CLOSED)
        self._end(REPLACED)  # Both would use the same memory.
        if not self._is_resumed:
            self._begin(self.position.epoch + (self.position.step > 0))
        iterator = BatchIterator(self._run(open_queue, steps))
        self._active = weakref.ref(iterator)
        return iterator

    def _run(
        self, open_queue: Callable[[Position, int | None], BatchQueue], steps: int
    ) -> Generator[Batch, None, None]:
        end_epoch = None
        if self.num_epochs is not None:
            end_epoch = self.position.first_epoch + self.num_epochs
        queue = self._queue = open_queue(self.position, end_epoch)
        try:
            first = self.position.first_epoch
            for epoch, step, batch in queue.batches():
                self._is_resumed = False
                done = step + 1
                if done < steps:
                    self.position = Position(epoch, done, first)
                    yield batch
                    continue
                pass_is_over = epoch + 1 == end_epoch
                if pass_is_over:  # One who counts batches, as Lightning does, asks for no more.
                    self._active = None
                    first = epoch + 1
                self.position = Position(epoch=epoch + 1, first_epoch=first)
                yield batch
                if pass_is_over:
                    return
        finally:
            queue.stop()
            if self._queue is queue:  # Else the next pass has begun.
                self._queue = self._active = None

    def refuse_while_iterating(self, what: str) -> None:
        """Raises a RuntimeError if an iteration is under way."""
        if self._active is not None and self._active() is not None:
            raise RuntimeError(
                f"{what} was called while the loader is being iterated: it has one place, not "
                "two. Let the first iteration end (or close() it), or make a second loader."
            )

    def _end(self, reason: str) -> None:
        iterator = self._active() if self._active is not None else None
        if iterator is not None:
            iterator.close(reason)
        if self._queue is not None:
            self._queue.stop()
        self._queue = self._active = None

    def close(self) -> None:
        """Ends an iteration under way; there is none after it."""
        self._closed = True
        self._end(CLOSED)

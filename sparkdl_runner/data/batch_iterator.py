"""An iterator over a loader's batches, which says why it has no more if it was ended early."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from typing import Any

CLOSED = (
    "the loader is closed, as it is after its with block. Iterate inside of the block, or make a "
    "new loader."
)
REPLACED = (
    "this iterator was replaced by a later one: a loader has one place, not two. Use the later "
    "one, or make a second loader."
)


class BatchIterator(Iterator[Any]):
    """The batches to the end of a pass; they are no longer read once it is let go."""

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches = batches
        self._reason: str | None = None

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            if self._reason is None:
                raise
        raise RuntimeError(self._reason)

    def close(self, reason: str | None = None) -> None:
        """Ends it early: ``next`` raises a RuntimeError with the reason, if there is one."""
        if inspect.getgeneratorstate(self._batches) != inspect.GEN_CLOSED:
            self._reason = reason
        self._batches.close()

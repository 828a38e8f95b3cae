"""What must arrive: kept by the sender until the receiver says that it has it."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Any


class Unconfirmed:
    """Messages in the order of their numbers, from the first that is not confirmed.

    Used by any number of threads. A connection may break: what it carried and nobody confirmed is
    still here, for the next one.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: dict[str, Any], most: int, *, wait_seconds: float) -> bool:
        """Keeps a message, once there are fewer than ``most``. Returns whether there was room."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self) < most, max(0.0, wait_seconds)):
                return False
            self._waiting.append((next(self._numbers), message))
        return True

    def after(self, number: int) -> list[tuple[int, dict[str, Any]]]:
        """The messages with higher numbers than ``number``, each with its own."""
        with self._changed:
            return [pair for pair in self._waiting if pair[0] > number]

    def confirm(self, number: int) -> None:
        """Forgets the messages up to ``number``: they have arrived."""
        with self._changed:
            while self._waiting and self._waiting[0][0] <= number:
                self._waiting.popleft()
            self._changed.notify_all()

    def wait_until_empty(self, seconds: float) -> None:
        """Waits until all have arrived, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, seconds)

"""Fetches in a few threads what will be asked for, in that order and up to a size."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

THREADS = 8

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class ReadAhead(Generic[_Key, _Value]):
    """Values by key.

    Args:
        fetch: Gets the value of a key; called in any thread.
        size_of: About how many bytes it will take.
        limit_bytes: How much may be fetched, or under way, and not taken yet. One value may
            always be, of whatever size.
    """

    def __init__(
        self, fetch: Callable[[_Key], _Value], size_of: Callable[[_Key], int], limit_bytes: int
    ) -> None:
        self._fetch, self._size_of, self.limit_bytes = fetch, size_of, limit_bytes
        self._waiting: deque[_Key] = deque()
        self._begun: dict[_Key, tuple[Future[_Value], int]] = {}
        """With the size that was counted."""
        self._bytes = 0
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def add(self, keys: Sequence[_Key]) -> None:
        """Keys that will be taken, in this order."""
        with self._lock:
            self._waiting.extend(key for key in keys if key not in self._begun)
        self._begin()

    def take(self, key: _Key) -> _Value:
        """The value that was fetched for a key; fetches it here if no thread has begun to."""
        with self._lock:
            future, size = self._begun.pop(key, (None, 0))
            if future is None and key in self._waiting:
                self._waiting.remove(key)
            self._bytes -= size
        if future is None:
            return self._fetch(key)
        try:
            return future.result()
        finally:
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            while self._waiting:
                size = self._size_of(self._waiting[0])
                if self._begun and self._bytes + size > self.limit_bytes:
                    return
                key = self._waiting.popleft()
                if key in self._begun:
                    continue
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(THREADS, "sparkdl-fetch")
                self._bytes += size
                self._begun[key] = (self._pool.submit(self._fetch, key), size)

    def clear(self) -> None:
        """Drops the added keys, which will not be taken."""
        with self._lock:
            self._waiting.clear()
            for future, _ in self._begun.values():
                future.cancel()
            self._begun.clear()
            self._bytes = 0

    def close(self) -> None:
        """The same, and ends the threads, once what is under way has ended."""
        self.clear()
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

"""Ranks as threads of one process, on as many hosts as a test wants, and a storage that counts."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkdl_runner.checkpoint.directory.local_storage import LocalStorage
from sparkdl_runner.checkpoint.peers import Peers


class Exchange:
    """Where the ranks of one run meet."""

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=300)
        self.numbers = 0
        """Whole numbers that one rank has added up or got, as a backend would have to carry."""


class ThreadPeers(Peers):
    """The other ranks, as one thread of them sees them."""

    def __init__(self, rank: int, exchange: Exchange, host: int = 0) -> None:
        self.rank, self.size = rank, len(exchange.values)
        self._exchange = exchange
        self._host = host

    @property
    def host_key(self) -> int:
        return self._host

    def broadcast(self, data: bytes) -> bytes:
        return self._meet(data)[0]

    def begin_sum(self, values: list[int]) -> Any:
        if self.rank == 0:
            self._exchange.numbers += len(values)
        return [sum(column) for column in zip(*self._meet(values), strict=True)]

    def _meet(self, value: Any) -> list[Any]:
        self._exchange.values[self.rank] = value
        self._exchange.barrier.wait()
        found = list(self._exchange.values)
        self._exchange.barrier.wait()
        return found


class CountingStorage(LocalStorage):
    """A local directory that counts what it is asked, as an object store would."""

    is_local = False

    def __init__(self, path: str) -> None:
        super().__init__(path, path, poll_seconds=0.02)
        self.counts: Counter[str] = Counter()
        self.read_bytes: Counter[str] = Counter()
        self.lock = threading.Lock()

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def names(self, directory: str = "") -> list[str]:
        self.count("LIST")
        return super().names(directory)

    def exists(self, name: str) -> bool:
        self.count("HEAD")
        return super().exists(name)

    def open(self, name: str) -> io.FileIO:
        self.count("GET")
        file = super().open(name)
        return _Counted(file, self, name)  # type: ignore[return-value]


class _Counted:
    def __init__(self, file: io.FileIO, storage: CountingStorage, name: str) -> None:
        self._file, self._storage, self._name = file, storage, name

    def readinto(self, memory: memoryview) -> int:
        count = self._file.readinto(memory) or 0
        with self._storage.lock:
            self._storage.read_bytes[self._name] += count
        return count

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def run_ranks(hosts: int, ranks_of_a_host: int, work: Callable[[ThreadPeers], Any]) -> list[Any]:
    """Calls ``work`` with the peers of each rank, each in a thread; returns what they return."""
    size = hosts * ranks_of_a_host
    exchange = Exchange(size)
    peers = [ThreadPeers(rank, exchange, rank // ranks_of_a_host) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(work, peers))

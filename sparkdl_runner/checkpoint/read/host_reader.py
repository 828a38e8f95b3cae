"""Reads a checkpoint together with the other ranks: one of a host reads a file, all of it have it.

What several ranks of a host need is put into memory that has no name (``memfd``). The others open
it by way of ``/proc``, which the kernel allows to processes of the same user only. It is gone when
the last process closes it, however that ends. Where ranks of a host cannot open one another's, as
in containers of their own, each reads for itself.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from sparkdl_runner.checkpoint.directory.files import read_entry
from sparkdl_runner.checkpoint.directory.manifest import Manifest
from sparkdl_runner.checkpoint.directory.memory import require_memory
from sparkdl_runner.checkpoint.directory.reader import CheckpointReader
from sparkdl_runner.checkpoint.directory.state_files import state_in
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import DamageError, UnreadableError
from sparkdl_runner.checkpoint.peers import Peers
from sparkdl_runner.checkpoint.read.plan import plan_of

# Threads of one rank: object stores answer many requests at once far faster than in turn.
_THREADS = 8
_MEMORY = "sparkdl_runner-checkpoint"
_BITS = 62


class HostReader(CheckpointReader):
    """The files of one checkpoint, for the ranks of a host; made and used by all ranks together.

    Args:
        storage: The directory of checkpoints.
        manifest: What the checkpoint holds, equal on all ranks.
        peers: All ranks.
        states: The states that this rank needs; it can load no other.
    """

    def __init__(
        self, storage: Storage, manifest: Manifest, peers: Peers, states: Collection[str]
    ) -> None:
        super().__init__(storage, manifest)
        self._rank = peers.rank
        needed = [
            number for number, entry in enumerate(manifest.files) if state_in(entry.path) in states
        ]
        self._memories = {peers.rank: _new_memory()}
        """Of this rank, and of those of its host; -1 where there is none."""
        gathered = peers.gather_numbers(
            [peers.host_key, os.getpid(), self._memories[peers.rank], *_packed(needed)]
        )
        hosts = [numbers[0] for numbers in gathered]
        if peers.any_rank(not self._opens_all(gathered)):
            hosts = list(range(peers.size))
        needs = [_unpacked(numbers[3:]) for numbers in gathered]
        sizes = [entry.size_bytes for entry in manifest.files]
        self._plan = plan_of(peers.rank, sizes, needs, hosts)
        self._places = {manifest.files[number].path: at for number, at in self._plan.places.items()}
        self._contents: dict[str, bytes] = {}
        self._views: dict[int, mmap.mmap] = {}

    def fetch(self) -> None:
        """Reads this rank's part from the storage, and compares each file with what was written.

        Once all ranks have, each finds what it needs.

        Raises:
            DamageError: A file is not what was written.
            UnreadableError: There is no memory for it.
        """
        plan, files = self._plan, self._manifest.files
        mine = [file for file, (reader, _) in plan.places.items() if reader == self._rank]
        held = sum(files[number].size_bytes for number in {*plan.own, *mine})
        require_memory(held, "this rank's part of it")
        jobs: list[Callable[[], None]] = [
            partial(self._keep, files[number].path) for number in plan.own
        ]
        jobs += [partial(self._share, files[number].path) for number in mine]
        jobs += [partial(self._read_into, files[number].path, None) for number in plan.checked]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="sparkdl-restore") as threads:
            running = [threads.submit(job) for job in jobs]
            try:
                for future in running:
                    future.result()
            finally:
                for future in running:
                    future.cancel()

    def read(self, path: str, *, keep: bool = True) -> bytes:
        """The content of a file that was fetched, here or by another rank of this host.

        Raises:
            DamageError: It is not listed, or of no state that this rank needs.
        """
        if path in self._contents:
            return self._contents.pop(path)
        if path not in self._places:
            raise DamageError(f"{path} is not in its list of files")
        reader, begin = self._places[path]
        if reader not in self._views:
            self._views[reader] = mmap.mmap(self._memories[reader], 0, prot=mmap.PROT_READ)
        return self._views[reader][begin : begin + self._entries[path].size_bytes]

    def load_shards(self, path: str) -> Any:
        """The content of a file of shards.

        Raises:
            DamageError: It is not listed, or is not what was written.
        """
        content = self.load(state_in(path))
        if content is None:
            raise DamageError(f"{path} is not in its list of files")
        return content

    def close(self) -> None:
        """Lets go of all memory."""
        self._contents.clear()
        for view in self._views.values():
            view.close()
        for memory in self._memories.values():
            if memory >= 0:
                os.close(memory)
        self._views, self._memories = {}, {}

    def _opens_all(self, gathered: list[list[int]]) -> bool:
        """Opens the memory of the other ranks of this host; returns whether that worked."""
        key = gathered[self._rank][0]
        for rank, (of_host, pid, number, *_) in enumerate(gathered):
            if of_host == key and rank != self._rank:
                self._memories[rank] = _open_memory(pid, number)
        return min(self._memories.values()) >= 0

    def _keep(self, path: str) -> None:
        self._contents[path] = read_entry(
            self._storage, str(self._manifest.name), self._entries[path]
        )

    def _share(self, path: str) -> None:
        _, begin = self._places[path]
        self._read_into(path, partial(_write, self._memories[self._rank], begin))

    def _read_into(self, path: str, write: Callable[[int, memoryview], None] | None) -> None:
        directory = str(self._manifest.name)
        read_entry(self._storage, directory, self._entries[path], keep=False, write=write)


def _new_memory() -> int:
    try:
        return os.memfd_create(_MEMORY)
    except (OSError, AttributeError):
        return -1


def _open_memory(pid: int, number: int) -> int:
    """Opens another process's memory; -1 if that is not to be had, or is something else."""
    path = f"/proc/{pid}/fd/{number}"
    with suppress(OSError):
        if number >= 0 and os.readlink(path).startswith(f"/memfd:{_MEMORY}"):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def _write(memory: int, begin: int, offset: int, piece: memoryview) -> None:
    try:
        written = 0
        while written < len(piece):
            written += os.pwrite(memory, piece[written:], begin + offset + written)
    except OSError as error:  # The checkpoint is as good as it was.
        raise UnreadableError(f"there is no memory to read it into ({error})") from error


def _packed(numbers: Collection[int]) -> list[int]:
    """Small numbers as the bits of larger ones."""
    words = [0] * (max(numbers, default=-1) // _BITS + 1)
    for number in numbers:
        words[number // _BITS] |= 1 << number % _BITS
    return words


def _unpacked(words: list[int]) -> list[int]:
    return [
        place * _BITS + bit
        for place, word in enumerate(words)
        if word
        for bit in range(_BITS)
        if word >> bit & 1
    ]

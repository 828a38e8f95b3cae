"""Writes a checkpoint from its copy: files, the ranks' lists, and at last the manifest.

Runs in a thread beside the training, on every rank; only rank 0 commits. No rank waits for a
message of another: rank 0 looks for the lists that the others write when they are done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sparkdl_runner.checkpoint import sharded
from sparkdl_runner.checkpoint.directory import shards
from sparkdl_runner.checkpoint.directory.files import FileEntry, read_file
from sparkdl_runner.checkpoint.directory.listing import (
    FENCES,
    attempts_in,
    is_claimed_by_others,
    read_fence,
)
from sparkdl_runner.checkpoint.directory.manifest import (
    MANIFEST,
    Manifest,
    rank_file,
    read_entries,
)
from sparkdl_runner.checkpoint.directory.sealed import seal, unseal
from sparkdl_runner.checkpoint.directory.state_files import FlatState, files_of, state_in
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.directory.transient_errors import patiently
from sparkdl_runner.checkpoint.errors import CheckpointError, CheckpointStorageError, DamageError
from sparkdl_runner.checkpoint.save.policy import SavePolicy
from sparkdl_runner.checkpoint.save.retention import remove

# The number of threads by which rank 0 reads the other ranks' lists.
_THREADS = 16
# Files that a rank writes at a time on remote storage, and has in memory. On HDFS a file may take
# half a second to be closed, however small it is.
_WRITERS = 4
_Answer = TypeVar("_Answer")


class _NumberLostError(CheckpointError):
    """Another training has this attempt's number."""


@dataclass(frozen=True, kw_only=True)
class SaveRequest:
    """One rank's part of one checkpoint."""

    manifest: Manifest
    """The manifest without files, which are known once they are written."""
    rank: int
    hosts: Sequence[str]
    """The hosts of the ranks, in their order."""
    states: Mapping[str, FlatState]
    """The states to write, by the path of the first file of each; see ``state_files``."""
    token: str = ""
    """Of the attempt's fence; empty where nobody else can have its number."""
    shards: Mapping[str, Any] = field(default_factory=dict)
    """Which parts of which tensors this rank's states hold, as JSON."""

    @property
    def host(self) -> str:
        """This rank's host."""
        return self.hosts[self.rank]


class Commit:
    """Writes one rank's part, and on rank 0 commits the checkpoint once all ranks have.

    A call that the storage fails is repeated for a while.

    Args:
        storage: The directory of checkpoints.
        job: What to write.
        hurry: Set when training has failed, so that others may never be done.
        policy: How long to try again, and to wait.
        keep: Gets each file while it is written.
    """

    def __init__(
        self,
        storage: Storage,
        job: SaveRequest,
        hurry: threading.Event,
        policy: SavePolicy,
        keep: Callable[[FileEntry, bytes], None] = lambda *_: None,
    ) -> None:
        self._keep = keep
        self._storage = storage
        self.job = job
        self._hurry = hurry
        self._policy = policy
        self._directory = str(job.manifest.name)

    def write(self) -> Manifest | None:
        """Writes this rank's files, and commits on rank 0.

        Returns:
            The manifest that was committed, on rank 0.

        Raises:
            CheckpointStorageError: Another rank did not write its part.
            CheckpointError: A later attempt has begun, or another one with this number.
            OSError: The storage refuses.
        """
        own = self.write_part()
        return None if self.job.rank else self.commit(own)

    def write_part(self) -> list[FileEntry]:
        """Writes this rank's files, and returns their entries.

        Raises:
            CheckpointError: The checkpoint was committed before.
            OSError: The storage refuses.
        """
        if self._exists(MANIFEST):
            raise CheckpointError(
                f"{self._storage.shown}/{self._directory} was committed before: save a step once."
            )
        with self._all_or_nothing():
            return self._write_part()

    def commit(self, own: list[FileEntry]) -> Manifest:
        """Commits on rank 0, once all ranks have written.

        Args:
            own: What ``write_part`` returned on rank 0.

        Raises:
            CheckpointStorageError: Another rank did not write its part.
            CheckpointError: A later attempt has begun, or another one with this number.
            OSError: The storage refuses.
        """
        with self._all_or_nothing():
            return self._commit(own)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Removes what was written, if the rest cannot be."""
        try:
            yield
        except _NumberLostError:
            raise  # What is in the folder may be the other training's.
        except BaseException:
            self._remove_partial()
            raise

    def wait(self) -> None:
        """Waits, on a rank that has written its part, until rank 0 has committed.

        Raises:
            CheckpointStorageError: It did not.
            CheckpointError: It did not, since a later attempt has begun.
        """
        if self._until(self._is_decided, self._policy.commit_timeout_seconds) and self._exists(
            MANIFEST
        ):
            return
        self._require_latest()
        gave_up = not self._exists(rank_file(self.job.rank))
        reason = "rank 0 gave it up" if gave_up else "rank 0 did not commit it in time"
        raise CheckpointStorageError(
            f"The checkpoint of step {self.job.manifest.step} in {self._storage.shown}, of which "
            f"rank {self.job.rank} on host {self.job.host} wrote its part, was not committed: "
            f"{reason}. Rank 0's own error says why."
        )

    def _is_decided(self) -> bool:
        """Whether rank 0 has committed, or given up: then it has removed this rank's list."""
        return self._exists(MANIFEST) or not self._exists(rank_file(self.job.rank))

    def _commit(self, files: list[FileEntry]) -> Manifest:
        job = self.job
        parts = [job.shards]
        missing = list(range(1, job.manifest.world_size))

        def all_are_done() -> bool:
            there = self._those_with_a_listing(missing)
            for rank, pair in zip(there, threads.map(self._read_listing, there), strict=True):
                if pair is not None:
                    entry, listing = pair
                    files.extend([*read_entries(listing.get("files")), entry])
                    parts.append(listing.get("shards", {}))
                    missing.remove(rank)
            return not missing

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="sparkdl-checkpoint") as threads:
            are_done = self._until(all_are_done, self._policy.ranks_timeout_seconds)
        if not are_done:
            policy, is_hurried = self._policy, self._hurry.is_set()
            seconds = policy.hurry_seconds if is_hurried else policy.ranks_timeout_seconds
            who = ", ".join(f"rank {rank} (host {job.hosts[rank]})" for rank in missing[:10])
            raise CheckpointStorageError(
                f"Rank 0 on host {job.host} saw nothing of {who} in {self._storage.shown}/"
                f"{self._directory} within {seconds:g} seconds after its own files were written. "
                "The directory must be on storage that all hosts share, and all ranks must save "
                "the same steps."
            )
        manifest = job.manifest
        if manifest.sharded:
            merged = shards.merge(parts)
            content = seal(merged)
            self._write(shards.METADATA, content)
            files.append(FileEntry.of(shards.METADATA, content))
            self._keep(files[-1], content)
            manifest = replace(manifest, parameters=sharded.parameters_of(merged))
        self._require_latest()
        manifest = replace(manifest, files=tuple(sorted(files, key=lambda entry: entry.path)))
        self._write(MANIFEST, manifest.to_bytes())
        return manifest

    def _require_latest(self) -> None:
        """Raises CheckpointError if a later attempt has begun, or another one with this number."""
        own, token = self.job.manifest.attempt, self.job.token
        names = self._patiently(lambda: self._storage.names(FENCES))
        newest = max(attempts_in(names), default=-1)
        if newest > own:
            raise CheckpointError(
                f"Attempt {newest} has begun in {self._storage.shown}, so that attempt {own}, "
                f"which this is (host {self.job.host}), commits nothing any more."
            )
        if token and is_claimed_by_others(names, own, token):
            self._require_own_fence()

    def _require_own_fence(self) -> None:
        """Raises _NumberLostError if the fence of this attempt's number is another training's.

        Two that begin in an object store at the same moment do not see each other: each finds no
        fence of a number and writes one, and the later one's stays.
        """
        number = self.job.manifest.attempt
        try:
            token = self._patiently(lambda: read_fence(self._storage, number)).get("token")
        except DamageError:
            return  # It was deleted, say; that is no sign of another training.
        if token != self.job.token:
            raise _NumberLostError(
                f"Another training has begun in {self._storage.shown} at the same moment as this "
                f"one (host {self.job.host}), and has taken attempt {number}; so this one commits "
                "nothing any more. Give each training a directory of its own."
            )

    def _patiently(self, action: Callable[[], _Answer]) -> _Answer:
        seconds = self._policy.retry_seconds
        return patiently(self._storage, action, self._hurry, retry_seconds=seconds)

    def _write_part(self) -> list[FileEntry]:
        """Writes this rank's files, on remote storage several at a time, and its list of them.

        The list comes last, as rank 0 waits for it. Nobody waits for rank 0's own.
        """
        job = self.job
        entries: list[FileEntry] = []
        running: deque[Future[None]] = deque()
        writers = 1 if self._storage.is_local else _WRITERS
        with ThreadPoolExecutor(writers, thread_name_prefix="sparkdl-checkpoint") as threads:

            def begin(path: str, content: bytes) -> None:
                entries.append(FileEntry.of(path, content))
                running.append(threads.submit(self._write, path, content))
                self._keep(entries[-1], content)

            def wait_for_all_but(count: int) -> None:
                while len(running) > count:
                    running.popleft().result()

            for first, state in job.states.items():
                for path, content in files_of(first, state):
                    begin(path, content)
                    # Without this, one more file would be in memory while the next is made.
                    del content
                    wait_for_all_but(writers - 1)
            if job.rank:
                wait_for_all_but(0)
            listing = {
                "rank": job.rank,
                "host": job.host,
                "files": [dict(vars(entry)) for entry in entries],
                "shards": job.shards,
            }
            begin(rank_file(job.rank), seal(listing))
            wait_for_all_but(0)
        return entries

    def _write(self, path: str, content: bytes) -> None:
        # Nobody else writes here, and to ask an object store for each file is one more request.
        is_again = not self._storage.is_local
        name = f"{self._directory}/{path}"

        def once() -> None:
            nonlocal is_again
            write = self._storage.replace if is_again else self._storage.write
            is_again = True
            write(name, content)

        self._patiently(once)

    def _exists(self, path: str) -> bool:
        name = f"{self._directory}/{path}"
        return self._patiently(lambda: self._storage.exists(name))

    def _those_with_a_listing(self, ranks: Sequence[int]) -> list[int]:
        """Which of the ranks have written, by one look at the directory for all of them."""
        if not ranks:
            return []
        names = self._patiently(lambda: self._storage.names(self._directory))
        there = set(names)
        return [rank for rank in ranks if f"{self._directory}/{rank_file(rank)}" in there]

    def _read_listing(self, rank: int) -> tuple[FileEntry, dict[str, Any]] | None:
        """A rank's list of the files that it wrote; None until the list is complete."""
        try:
            content, entry = read_file(self._storage, self._directory, rank_file(rank))
            return entry, unseal(content)
        except DamageError:
            return None  # It is being written.

    def _until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Asks ``is_done`` until it is true; returns whether it was within so many seconds."""
        end = time.monotonic() + seconds
        while not is_done():
            if self._hurry.is_set():
                end = min(end, time.monotonic() + self._policy.hurry_seconds)
            if time.monotonic() >= end:
                return False
            time.sleep(self._storage.poll_seconds)
        return True

    def _remove_partial(self) -> None:
        """Removes what will never be committed, as far as the storage lets it."""
        try:
            names = self._storage.names(self._directory)
            if self.job.rank:
                own = {state_in(path) for path in [*self.job.states, rank_file(self.job.rank)]}
                start = len(self._directory) + 1
                names = [name for name in names if state_in(name[start:]) in own]
            remove(self._storage, self._directory, names)
        except Exception:  # noqa: S110 - the error that led here is the one to tell
            pass

"""What happens to a checkpoint after its copy was taken: files, lists, and at last the manifest.

Runs in a thread beside the training, on every rank; only rank 0 commits. No rank waits for a
message of another: rank 0 looks for the lists that the others write when they are done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sparkdl_runner.checkpoint.directory import attempts, shards
from sparkdl_runner.checkpoint.directory.files import DamageError, read_bytes, write_bytes
from sparkdl_runner.checkpoint.directory.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    rank_file,
    read_entries,
)
from sparkdl_runner.checkpoint.directory.retrying import patiently
from sparkdl_runner.checkpoint.directory.sealed import BrokenSealError, seal, unseal
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.directory.tensor_files import files_of, state_in
from sparkdl_runner.checkpoint.errors import CheckpointError, CheckpointStorageError

# How long rank 0 waits, once it is done itself, for the others to be.
RANKS_TIMEOUT_SECONDS = 120.0
# How long another rank waits for the commit, once it is done itself: rank 0 has more to write.
COMMIT_TIMEOUT_SECONDS = 3600.0
# The same where training has failed, perhaps since those ranks are gone.
HURRY_SECONDS = 3.0


@dataclass(kw_only=True)
class Job:
    """One rank's part of one checkpoint."""

    manifest: Manifest
    """Without files; these are known once they are written."""
    rank: int
    host: str
    objects: Mapping[str, Any]
    """States to write, by the path of the first file of each; see ``tensor_files``."""
    shards: Mapping[str, Any] = field(default_factory=dict)
    """Which parts of which tensors this rank's objects hold, as JSON."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Where the ranks are, as far as it is known."""

    @property
    def directory(self) -> str:
        """Where the checkpoint goes."""
        return str(self.manifest.name)


def write_and_commit(storage: Storage, job: Job, hurry: threading.Event) -> Manifest | None:
    """Writes this rank's files, and on rank 0 commits the checkpoint when all ranks have.

    A call that the storage fails is repeated for a while.

    Args:
        storage: The directory of checkpoints.
        job: What to write.
        hurry: Set when training has failed, so that others may never be done.

    Returns:
        The manifest that was committed, on rank 0.

    Raises:
        CheckpointStorageError: Another rank did not write its part.
        CheckpointError: A later attempt has begun.
        OSError: The storage refuses.
    """
    if _exists(storage, f"{job.directory}/{MANIFEST}", hurry):
        raise CheckpointError(f"{storage.shown}/{job.directory} was committed before.")
    try:
        own = [
            _write(storage, job, name, content, hurry)
            for path, state in job.objects.items()
            for name, content in files_of(path, state)
        ]
        listing = {
            "rank": job.rank,
            "host": job.host,
            "files": [dict(vars(entry)) for entry in own],
            "shards": job.shards,
        }
        entry = _write(storage, job, rank_file(job.rank), seal(listing), hurry)
        if job.rank:
            return None
        return _commit(storage, job, [*own, entry], hurry)
    except BaseException:
        _remove_partial(storage, job)
        raise


def await_commit(storage: Storage, job: Job, hurry: threading.Event) -> None:
    """Waits on a rank that has written its part until rank 0 has committed.

    Raises:
        CheckpointStorageError: It did not.
        CheckpointError: It did not, since a later attempt has begun.
    """
    mine = f"{job.directory}/{rank_file(job.rank)}"
    until = _Deadline(COMMIT_TIMEOUT_SECONDS, hurry)
    committed = f"{job.directory}/{MANIFEST}"
    while not _exists(storage, committed, hurry):
        gave_up = not _exists(storage, mine, hurry)
        if gave_up and _exists(storage, committed, hurry):
            return
        if gave_up or until.has_passed():
            _require_latest(storage, job, hurry)
            reason = "rank 0 gave it up" if gave_up else "rank 0 did not commit it in time"
            raise CheckpointStorageError(
                f"The checkpoint of step {job.manifest.step} in {storage.shown}, of which rank "
                f"{job.rank} on host {job.host} wrote its part, was not committed: {reason}. "
                "Rank 0's own error says why."
            )
        time.sleep(storage.poll_seconds)


def _commit(storage: Storage, job: Job, files: list[FileEntry], hurry: threading.Event) -> Manifest:
    directory = job.directory
    parts = [job.shards]
    until = _Deadline(RANKS_TIMEOUT_SECONDS, hurry)
    missing = list(range(1, job.manifest.world_size))
    while missing:
        for rank in list(missing):
            found = patiently(storage, partial(_read_listing, storage, directory, rank), hurry)
            if found is not None:
                entry, listing = found
                files += [*read_entries(listing.get("files")), entry]
                parts.append(listing.get("shards", {}))
                missing.remove(rank)
        if missing and until.has_passed():
            who = ", ".join(
                f"rank {rank}" + (f" (host {job.hosts[rank]})" if rank in job.hosts else "")
                for rank in missing[:10]
            )
            raise CheckpointStorageError(
                f"Rank 0 on host {job.host} saw nothing of {who} in {storage.shown}/{directory} "
                f"within {until.seconds:g} seconds after its own files were written. The directory "
                "must be on storage that all hosts share, and all ranks must save the same steps."
            )
        if missing:
            time.sleep(storage.poll_seconds)
    if job.manifest.sharded:
        content = seal(shards.merge(parts))
        files.append(_write(storage, job, shards.METADATA, content, hurry))
    _require_latest(storage, job, hurry)
    manifest = replace(job.manifest, files=tuple(sorted(files, key=lambda entry: entry.path)))
    _write(storage, job, MANIFEST, manifest.to_bytes(), hurry)
    return manifest


def _require_latest(storage: Storage, job: Job, hurry: threading.Event) -> None:
    """Raises CheckpointError if a later attempt has begun."""
    own = job.manifest.attempt
    later = patiently(storage, lambda: attempts.later_attempt(storage, own), hurry)
    if later is not None:
        raise CheckpointError(
            f"Attempt {later} has begun in {storage.shown}, so that attempt {own}, which this is "
            f"(host {job.host}), commits nothing any more."
        )


def _write(
    storage: Storage, job: Job, path: str, content: bytes, hurry: threading.Event
) -> FileEntry:
    """Writes a file of the checkpoint, anew where the storage failed half-way."""
    tries = 0

    def once() -> FileEntry:
        nonlocal tries
        tries += 1
        if tries > 1:
            storage.delete(f"{job.directory}/{path}")
        return write_bytes(storage, job.directory, path, content)

    return patiently(storage, once, hurry)


def _exists(storage: Storage, name: str, hurry: threading.Event) -> bool:
    return patiently(storage, lambda: storage.exists(name), hurry)


def _read_listing(
    storage: Storage, directory: str, rank: int
) -> tuple[FileEntry, dict[str, Any]] | None:
    """What a rank says it wrote; None as long as it has not said all of it."""
    import hashlib

    path = rank_file(rank)
    if not storage.exists(f"{directory}/{path}"):
        return None
    try:
        content = read_bytes(storage, f"{directory}/{path}")
        listing = unseal(content)
    except (DamageError, BrokenSealError):
        return None  # It is being written.
    digest = hashlib.sha256(content).hexdigest()
    return FileEntry(path=path, size_bytes=len(content), sha256=digest), listing


def _remove_partial(storage: Storage, job: Job) -> None:
    """Removes what will never be committed, as far as the storage lets it."""
    try:
        names = storage.names(job.directory)
        if job.rank:
            own = {state_in(f"{job.directory}/{path}") for path in job.objects}
            own.add(f"{job.directory}/{rank_file(job.rank)}")
            names = [name for name in names if state_in(name) in own]
        # A manifest may be there in part, if the disk became full with it.
        for name in sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}")):
            storage.delete(name)
        storage.delete_directories(job.directory)
    except Exception:  # noqa: S110 - the error that led here is the one to tell
        pass


class _Deadline:
    def __init__(self, seconds: float, hurry: threading.Event) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._hurry = hurry

    def has_passed(self) -> bool:
        if self._hurry.is_set():
            self.seconds = min(self.seconds, HURRY_SECONDS)
            self._end = min(self._end, time.monotonic() + HURRY_SECONDS)
        return time.monotonic() >= self._end

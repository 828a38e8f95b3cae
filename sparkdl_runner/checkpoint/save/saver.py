"""One save at a time, in a thread beside the training."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress

from sparkdl_runner.base.storage_errors import StorageFailure, failure_of
from sparkdl_runner.checkpoint.copies.memory_copies import MemoryCopies
from sparkdl_runner.checkpoint.copies.neighbour_copies import copy_of_others
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import Name
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.directory.transient_errors import patiently
from sparkdl_runner.checkpoint.errors import CheckpointError, CheckpointStorageError
from sparkdl_runner.checkpoint.save.commit import Commit, SaveRequest
from sparkdl_runner.checkpoint.save.policy import SavePolicy
from sparkdl_runner.checkpoint.save.retention import Retention
from sparkdl_runner.rank import rank_facts

# Of the thread that writes, of 0 to 19: it still gets a tenth of a core that is wanted by others.
_NICENESS = 10

_log = logging.getLogger(__name__)


class Saver:
    """Writes what it is given, and keeps an error until someone waits.

    Args:
        storage: The directory of checkpoints.
        retention: What rank 0 keeps after each commit.
        policy: What is done about a save that fails.
        copies: Keeps what is written in memory too.
    """

    def __init__(
        self, storage: Storage, retention: Retention, policy: SavePolicy, copies: MemoryCopies
    ) -> None:
        self._copies = copies
        self._storage = storage
        self._retention = retention
        self._policy = policy
        self._failed = self._failed_in_a_row = 0
        self._thread: threading.Thread | None = None
        self._commit: Commit | None = None
        self._error: BaseException | None = None
        self._saved: set[int] = set()
        self._hurry = threading.Event()
        self._newest: Name | None = None

    def has(self, step: int) -> bool:
        """Whether this step was given here to write, and nothing has failed since."""
        return step in self._saved

    def start(self, job: SaveRequest) -> None:
        """Begins to write; the save before must have been waited for."""
        self._saved.add(job.manifest.step)
        self._copies.begin(job.manifest.step)
        self._commit = Commit(self._storage, job, self._hurry, self._policy, self._copies.keep)
        # A daemon: a storage that hangs must not keep the process alive. join() waits for it.
        self._thread = threading.Thread(
            target=self._work, args=(self._commit,), name="sparkdl-checkpoint", daemon=True
        )
        self._thread.start()

    def tolerate(self, action: Callable[[], None]) -> None:
        """Does something that may tell of a failed save; a warning, as long as that is allowed.

        Raises:
            CheckpointError: A later attempt has begun.
            CheckpointStorageError: More saves in a row have failed than is allowed.
        """
        try:
            action()
        except CheckpointStorageError as error:
            self._failed += 1
            self._failed_in_a_row += 1
            message = str(error)
            rank_facts.note(failed_saves=self._failed, failed_save=message)
            if not self._policy.goes_on(self._failed_in_a_row):
                raise
            warnings.warn(
                f"{message} Training goes on without it: failed save {self._failed_in_a_row} in a "
                f"row, of {self._policy.max_failed_saves} that are allowed.",
                stacklevel=3,
            )

    def join(self) -> None:
        """Waits until this rank has written, and rank 0 has committed if this is rank 0.

        Raises:
            CheckpointError: It failed; told once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._failed_in_a_row *= self._error is not None
        error, self._error = self._error, None
        if error is not None and self._commit is not None:
            job, self._commit = self._commit.job, None
            self._saved.clear()
            self._copies.failed()
            raise save_error(self._storage, job, error, self._newest) from error

    def wait(self) -> None:
        """Waits until what is being saved is committed, on every rank.

        Raises:
            CheckpointError: It was not.
        """
        self.join()
        if self._commit is not None and self._commit.job.rank:
            try:
                self._commit.wait()
            except CheckpointError:
                self._saved.clear()
                self._copies.failed()
                raise
        self._commit = None

    def hurry(self) -> None:
        """Gives other ranks little time from now on: training has failed."""
        self._hurry.set()

    def _work(self, commit: Commit) -> None:
        # Lower priority: if all cores train, a step waits for its slowest thread.
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            manifest = commit.write()
        except BaseException as error:
            self._error = error
            return
        job = commit.job.manifest
        if 0 < len(self._copies.served(job.step)) < job.world_size:
            copy = self._storage, self._copies, job.name, commit.wait  # At this low priority.
            threading.Thread(None, copy_of_others, "sparkdl-neighbour", copy, daemon=True).start()
        if manifest is None:
            return
        self._newest = manifest.name
        self._copies.committed(manifest.step)
        place = f"{self._storage.shown}/{manifest.name}"
        rank_facts.tell(checkpoint_step=manifest.step, checkpoint=place)
        try:
            patiently(
                self._storage,
                lambda: self._retention.apply(self._storage, manifest),
                self._hurry,
                retry_seconds=self._policy.removal_retry_seconds,
            )
        except Exception as error:  # The checkpoint is safe; that old ones stay does no harm yet.
            _log.warning(
                "Rank %d on host %s could not remove old checkpoints from %s: %s",
                commit.job.rank,
                commit.job.host,
                self._storage.shown,
                error,
            )


def save_error(
    storage: Storage, job: SaveRequest, error: BaseException, newest: Name | None = None
) -> CheckpointError:
    """The error that tells a person of a save that failed.

    Args:
        storage: The directory of checkpoints.
        job: What was to be saved.
        error: Why it was not.
        newest: The newest checkpoint, for the case that the storage cannot be asked.
    """
    kind = type(error) if isinstance(error, CheckpointError) else CheckpointStorageError
    failure = failure_of(error)
    why = "" if failure is StorageFailure.UNKNOWN else f"{failure.value}: "
    return kind(
        f"Rank {job.rank} on host {job.host} could not save the checkpoint of step "
        f"{job.manifest.step} into {storage.shown}: {why}{error}"
        f"{'' if str(error).endswith('.') else '.'} {_still_good(storage, newest)}"
    )


def _still_good(storage: Storage, newest: Name | None) -> str:
    try:
        newest = max(committed(storage), default=None)
    except Exception:  # noqa: S110 - what was known before is said then
        pass
    if newest is None:
        return "There is no earlier checkpoint."
    return f"The checkpoint of step {newest.step} is still good ({storage.shown}/{newest})."


def finish(saver: Saver, stop_listening: Callable[[], None]) -> None:
    """At the end of a manager that was not closed: finishes what is being written."""
    stop_listening()
    saver.hurry()
    try:
        saver.join()
    except CheckpointError as error:
        warnings.warn(str(error), stacklevel=1)

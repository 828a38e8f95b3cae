"""One save at a time, in a thread beside the training."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress

from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import Name
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import CheckpointError, CheckpointStorageError
from sparkdl_runner.checkpoint.save.commit import Commit, Job
from sparkdl_runner.checkpoint.save.retention import Retention
from sparkdl_runner.hooks import facts

# Of the thread that writes, of 0 to 19: it still gets a tenth of a core that is wanted by others.
_NICENESS = 10

_log = logging.getLogger(__name__)


class Saver:
    """Writes what it is given, and keeps an error until someone waits.

    Args:
        storage: The directory of checkpoints.
        retention: What rank 0 keeps after each commit.
    """

    def __init__(self, storage: Storage, retention: Retention) -> None:
        self._storage = storage
        self._retention = retention
        self._thread: threading.Thread | None = None
        self._commit: Commit | None = None
        self._error: BaseException | None = None
        self._saved: set[int] = set()
        self._hurry = threading.Event()
        self._newest: Name | None = None

    def has(self, step: int) -> bool:
        """Whether this step was given here to write, and nothing has failed since."""
        return step in self._saved

    def start(self, job: Job) -> None:
        """Begins to write; the save before must have been waited for."""
        self._saved.add(job.manifest.step)
        self._commit = Commit(self._storage, job, self._hurry)
        # A daemon, as a storage that hangs must not keep the process; whoever made this waits.
        self._thread = threading.Thread(
            target=self._work, args=(self._commit,), name="sparkdl-checkpoint", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Waits until this rank has written, and rank 0 has committed if this is rank 0.

        Raises:
            CheckpointError: It failed; told once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None and self._commit is not None:
            job, self._commit = self._commit.job, None
            self._saved.clear()
            kind = type(error) if isinstance(error, CheckpointError) else CheckpointStorageError
            raise kind(
                f"Rank {job.rank} on host {job.host} could not save the checkpoint of step "
                f"{job.manifest.step} into {self._storage.shown}: {error}"
                f"{'' if str(error).endswith('.') else '.'} {self._still_good()}"
            ) from error

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
                raise
        self._commit = None

    def hurry(self) -> None:
        """Gives other ranks little time from now on: training has failed."""
        self._hurry.set()

    def _work(self, commit: Commit) -> None:
        # Where all cores train, a step waits for its slowest thread; training comes first.
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            manifest = commit.write()
        except BaseException as error:
            self._error = error
            return
        if manifest is None:
            return
        self._newest = manifest.name
        place = f"{self._storage.shown}/{manifest.name}"
        facts.note(checkpoint_step=manifest.step, checkpoint=place)
        try:
            self._retention.apply(self._storage, manifest)
        except Exception as error:  # The checkpoint is safe; that old ones stay hurts nobody yet.
            _log.warning(
                "Rank %d on host %s could not remove old checkpoints from %s: %s",
                commit.job.rank,
                commit.job.host,
                self._storage.shown,
                error,
            )

    def _still_good(self) -> str:
        try:
            newest = max(committed(self._storage), default=None)
        except Exception:
            newest = self._newest
        if newest is None:
            return "There is no earlier checkpoint."
        return (
            f"The checkpoint of step {newest.step} is still good ({self._storage.shown}/{newest})."
        )

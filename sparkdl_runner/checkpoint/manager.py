"""``CheckpointManager``, the one class that training code uses: it saves and restores."""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl_runner.base.filesystem import StorageOptions
from sparkdl_runner.base.whole_number import require_whole
from sparkdl_runner.checkpoint import peers, stopping
from sparkdl_runner.checkpoint.copies.memory_copies import MemoryCopies
from sparkdl_runner.checkpoint.directory.in_memory import InMemory
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import Name, problems_of
from sparkdl_runner.checkpoint.directory.storage import directory_url, open_storage
from sparkdl_runner.checkpoint.errors import CheckpointError
from sparkdl_runner.checkpoint.restoring import Restored, require_training, restore
from sparkdl_runner.checkpoint.save.attempt import WriterFence, begin_together, warn_if_newer
from sparkdl_runner.checkpoint.save.policy import OnSaveError, SavePolicy
from sparkdl_runner.checkpoint.save.requested_end import end_if_growing, end_preempted
from sparkdl_runner.checkpoint.save.retention import Mode, Retention
from sparkdl_runner.checkpoint.save.saver import Saver, finish
from sparkdl_runner.checkpoint.save.schedule import Schedule
from sparkdl_runner.checkpoint.save.snapshots import Snapshots
from sparkdl_runner.checkpoint.stateful import Stateful
from sparkdl_runner.rank import preemption, rank_facts, stop_request


class CheckpointManager:
    """Saves and restores a training on any number of ranks.

    Example::

        with CheckpointManager(url, every_steps=100) as checkpoints:
            restored = checkpoints.restore(model, optimizer, loader)
            step = restored.step if restored else 0
            for batch in loader:
                ...
                step += 1
                if checkpoints.due(step):
                    checkpoints.save(step, model, optimizer, loader, extra={"note": "any plain"})

    ``restore``, ``due`` and ``save`` are to be called by all ranks, at the same steps. ``save``
    returns as soon as tensors are copied to host memory; a thread does the rest, and its errors
    are raised by the next ``save``, ``wait`` or ``close``. When SIGTERM reaches any rank, ``due``
    becomes true on all of them at the same step, and the ``save`` that follows raises
    ``Preempted`` once its checkpoint is committed.

    The model is rank 0's: of buffers that differ from rank to rank, as statistics of batch
    normalization do under Horovod, rank 0's are saved. Random number generators are each rank's
    own; those that the checkpoint does not know are seeded from the saved step and their rank.

    Args:
        directory: A local path, or a URL: ``file:/…``, ``/Volumes/…``, ``dbfs:/…``, ``s3a://…``,
            ``abfss://…``, ``gs://…`` or any that fsspec knows. All hosts must see the same.
        keep_last: How many of the newest checkpoints stay.
        keep_best: How many of the best by ``best_metric`` stay too; by default the one best.
        best_metric: Which of the ``metrics`` given to ``save`` says what is best.
        best_mode: Whether small (``"min"``) or large (``"max"``) is good. NaN never is.
        every_steps: ``due`` each time that so many steps are done.
        every_seconds: ``due`` each time that so much time has passed on rank 0's clock.
        asynchronous: Whether ``save`` returns before the checkpoint is written.
        sharded: Whether each rank saves its part; needs ``torch.distributed``. By default if ranks
            have parts: a ``DTensor``, other layers, or a ``ZeroRedundancyOptimizer``.
        on_save_error: ``"fail"`` raises the error of a save; ``"warn"`` makes it a warning, which
            the MLflow run shows too, and training goes on.
        max_failed_saves: How many saves in a row may fail so; the next one raises the error.
        retry_seconds: How long a storage that fails for a time is tried again, with growing pauses;
            for one file that cannot be read, a fifteenth of that; for old checkpoints that cannot
            be removed, a fifth.
        ranks_timeout_seconds: How long rank 0 waits for the other ranks' parts, once it is done.
        memory_copies: 1 keeps what each rank saves last in its host's memory too, what rank 0 saves
            in each host's, and shards in one other host's, so that a restart need not read them
            from the storage.
        storage_options: As in :func:`~sparkdl_runner.base.filesystem.open_filesystem`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or the URL holds credentials.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        keep_best: int | None = None,
        best_metric: str | None = None,
        best_mode: Mode = "min",
        every_steps: int | None = None,
        every_seconds: float | None = None,
        asynchronous: bool = True,
        sharded: bool | None = None,
        on_save_error: OnSaveError = "fail",
        max_failed_saves: int = 3,
        retry_seconds: float = 60.0,
        ranks_timeout_seconds: float = 120.0,
        memory_copies: int = 0,
        storage_options: StorageOptions | None = None,
    ) -> None:
        self._asynchronous = asynchronous
        retention = Retention(
            keep_last=keep_last, keep_best=keep_best, best_metric=best_metric, best_mode=best_mode
        )
        policy = SavePolicy(
            on_save_error=on_save_error,
            max_failed_saves=max_failed_saves,
            retry_seconds=retry_seconds,
            ranks_timeout_seconds=ranks_timeout_seconds,
        )
        self._storage = open_storage(directory_url(directory), storage_options, retry_seconds)
        if require_whole("memory_copies", memory_copies, least=0) > 1:
            raise ValueError(f"memory_copies is {memory_copies}; expected 0 or 1.")
        self._snapshots = Snapshots(self._storage, sharded, retention)
        self._schedule = Schedule(every_steps, every_seconds, stop_request.preemption_reason)
        self._copies = MemoryCopies(is_wanted=memory_copies == 1)
        self._saver = Saver(self._storage, retention, policy, self._copies)
        self._connected: peers.Peers | None = None
        self._attempt: WriterFence | None = None
        self._restored = False
        self._resumed_at: int | None = None
        self._closed = False
        self._stop_listening = stopping.stop_listening if preemption.listen() else lambda: None
        # A save under way when the interpreter ends is finished, and SIGTERM ends processes again.
        self._finalizer = weakref.finalize(self, finish, self._saver, self._stop_listening)

    @property
    def preempted(self) -> bool:
        """Whether a rank's host will be taken away, and all ranks know."""
        return self._schedule.preempted is not None

    def due(self, step: int) -> bool:
        """Whether to save now. To be asked by all ranks after every step; true on all or none.

        Raises:
            CheckpointError: No checkpoint can be kept in the directory.
        """
        self._begin()  # A directory that cannot be written is an error of the first step.
        return self._schedule.due(require_whole("step", step, least=0), self._peers())

    def save(
        self,
        step: int,
        model: Any = None,
        optimizer: Any = None,
        loader: Any = None,
        extra: Any = None,
        *,
        epoch: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Saves a checkpoint, in the background unless ``asynchronous=False`` was given.

        To be called by all ranks. Waits for the save before, if that is still being written.
        Saving a step twice in one attempt does nothing the second time.

        Args:
            step: Steps that are done.
            model: A module; what wraps it for data-parallel training is left out.
            optimizer: Its optimizer.
            loader: Anything whose ``state_dict()`` is plain JSON and equal on all ranks.
            extra: Tensors, numbers, text, and dicts and lists of them; rank 0's is saved.
            epoch: To be found in ``Restored``.
            metrics: Numbers by name.
            **others: Anything with ``state_dict`` and ``load_state_dict``, such as
                ``scheduler=scheduler``; rank 0's is saved.

        Raises:
            CheckpointError: The save before failed, or there is no room for this one.
            TypeError: Something has no state, or one that could not be loaded again without running
                code from the file.
            ValueError: There are ``metrics``, and ``best_metric`` is none of them.
            Preempted: A rank's host will be taken away; the checkpoint is committed.
            Growing: There can be more ranks, which will go on from the committed checkpoint.
        """
        require_whole("step", step, least=0)
        if self._closed:
            raise CheckpointError("This CheckpointManager is closed: save in its with block.")
        attempt = self._begin()
        self._saver.tolerate(self._saver.join)
        if not self._restored:
            self._restored = True
            warn_if_newer(self._storage, attempt, step)
        if not self._saver.has(step):
            job = self._snapshots.take(
                attempt,
                step=step,
                given=Stateful.of(model, optimizer, loader, others),
                extra=extra,
                epoch=epoch,
                metrics=metrics,
            )
            self._schedule.note(step)
            self._saver.start(job)
        if (stop := self._schedule.preempted) is not None:
            end_preempted(self._saver, attempt, stop, step)
        end_if_growing(self._saver, attempt, step, self._resumed_at)
        if not self._asynchronous:
            self.wait()

    def restore(
        self, model: Any = None, optimizer: Any = None, loader: Any = None, **others: Any
    ) -> Restored | None:
        """Restores the newest checkpoint of which every byte is as it was written.

        To be called by all ranks, which agree on the checkpoint; any number of ranks may restore
        it. What is passed over, and why, is a warning. Nothing is written: a training that saves
        into the directory meanwhile goes on.

        Args:
            model: As in ``save``; left alone if None, as are the others.
            optimizer: As in ``save``.
            loader: As in ``save``; takes the state by ``load_state_dict``, whose errors pass.
            **others: As in ``save``.

        Returns:
            What was restored; None if there is no checkpoint, or none that is whole.

        Raises:
            CheckpointError: This process trains nothing: it is no rank, and restores a model alone.
            CheckpointMismatchError: The checkpoint is of another model or optimizer; neither was
                changed.
            CheckpointStorageError: The directory cannot be read.
        """
        self._saver.join()
        target = Stateful.of(model, optimizer, loader, others)
        if target.is_model_alone and self._attempt is None:
            require_training(self._storage, self._peers())
        self._restored = True
        self._storage.copies = self._copies.found
        try:
            restored = restore(self._storage, self._peers(), target)
        finally:
            self._storage.copies = InMemory()
        self._copies.hand_on()
        self._resumed_at = restored.step if restored else 0
        if restored is not None:
            self._schedule.note(restored.step)
            rank_facts.note(restored_step=restored.step)
        return restored

    def wait(self) -> None:
        """Waits until what is being saved is committed.

        Raises:
            CheckpointError: It failed, and ``on_save_error`` makes that no warning.
        """
        self._saver.tolerate(self._saver.wait)

    def list(self) -> Sequence[Name]:
        """The committed checkpoints, oldest first. No other rank is asked."""
        return sorted(committed(self._storage))

    def verify(self, name: Name | str) -> Sequence[str]:
        """Reads all of a checkpoint; no other rank is asked.

        Args:
            name: One of ``list()``, or its text ``step-N/attempt-A``.

        Returns:
            What is wrong with it; empty if every byte is as it was written.

        Raises:
            ValueError: The name is none.
        """
        parsed = Name.parse(name) if isinstance(name, str) else name
        if parsed is None:
            raise ValueError(f"{name!r} names no checkpoint; expected step-N/attempt-A.")
        return problems_of(self._storage, parsed)

    def close(self) -> None:
        """Waits for what is being saved, and lets go of memory and of SIGTERM.

        Raises:
            CheckpointError: What was being saved failed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.wait()
        finally:
            self._finalizer.detach()
            # An error is on its way, of the training or of the last save: a restart may come.
            self._copies.close(is_over=sys.exc_info()[0] is None)
            self._snapshots.let_go()
            self._stop_listening()
            self._schedule.close()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            self.close()
            return
        self._saver.hurry()
        self._schedule.abandon()
        try:
            self.close()
        except CheckpointError as problem:
            warnings.warn(str(problem), stacklevel=2)  # The error of the training says more.

    def _peers(self) -> peers.Peers:
        self._connected = self._connected or peers.connect()
        return self._connected

    def _begin(self) -> WriterFence:
        """Begins the attempt, and so ends others, at the first ``due`` or ``save``."""
        self._attempt = self._attempt or begin_together(self._storage, self._peers())
        return self._attempt

"""The one class that training code uses: when to save, saving, and going on."""

from __future__ import annotations

import json
import os
import platform
import warnings
import weakref
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from sparkdl_runner import __version__, preemption, resumable, world
from sparkdl_runner.checkpoint import attempts, generators, mismatch, peers, plain, sharded
from sparkdl_runner.checkpoint.commit import Job
from sparkdl_runner.checkpoint.errors import CheckpointError, Preempted
from sparkdl_runner.checkpoint.host_copies import HostCopies, tensor_bytes
from sparkdl_runner.checkpoint.manifest import (
    EXTRA,
    MODEL,
    OPTIMIZER,
    Manifest,
    Name,
    generators_file,
)
from sparkdl_runner.checkpoint.restoring import Restored, Target, restore
from sparkdl_runner.checkpoint.retention import Mode, Retention
from sparkdl_runner.checkpoint.saver import Saver
from sparkdl_runner.checkpoint.schedule import Schedule
from sparkdl_runner.checkpoint.shards import shards_file
from sparkdl_runner.checkpoint.storage import directory_url, open_storage
from sparkdl_runner.checkpoint.verify import problems_of
from sparkdl_runner.filesystem import StorageOptions

# What a save needs beside the tensors: names, lists, the states of generators.
_SPARE_BYTES = 1 << 20


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
    own; a rank that the checkpoint knows nothing of, in a larger world, is seeded from the saved
    step and its rank.

    Args:
        directory: A local path, or a URL: ``file:/…``, ``/Volumes/…``, ``dbfs:/…``, ``s3a://…``,
            ``abfss://…``, ``gs://…`` or any that fsspec knows. All hosts must see the same.
        keep_last: How many of the newest checkpoints stay.
        keep_best: How many of the best by ``best_metric`` stay too.
        best_metric: Which of the ``metrics`` given to ``save`` says what is best.
        best_mode: Whether small (``"min"``) or large (``"max"``) is good. NaN never is.
        every_steps: ``due`` each time that so many steps are done.
        every_seconds: ``due`` each time that so much time has passed on rank 0's clock.
        asynchronous: Whether ``save`` returns before the checkpoint is written.
        sharded: Whether each rank saves its part of the model; needs ``torch.distributed``. By
            default exactly if a parameter is a ``DTensor``.
        storage_options: As in :func:`~sparkdl_runner.filesystem.open_filesystem`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or the URL holds credentials.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        keep_best: int = 0,
        best_metric: str | None = None,
        best_mode: Mode = "min",
        every_steps: int | None = None,
        every_seconds: float | None = None,
        asynchronous: bool = True,
        sharded: bool | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        _require_whole("keep_last", keep_last, least=1)
        _require_whole("keep_best", keep_best, least=0)
        if every_steps is not None:
            _require_whole("every_steps", every_steps, least=1)
        if every_seconds is not None and not every_seconds > 0:
            raise ValueError(f"every_seconds is {every_seconds!r}; expected more than 0.")
        if best_mode not in ("min", "max"):
            raise ValueError(f"best_mode is {best_mode!r}; expected 'min' or 'max'.")
        if bool(keep_best) != (best_metric is not None):
            raise ValueError("keep_best and best_metric go together: give both, or neither.")
        self._url = directory_url(directory)
        self._storage = open_storage(self._url, storage_options)
        self._asynchronous = asynchronous
        self._sharded = sharded
        self._retention = Retention(
            keep_last=keep_last, keep_best=keep_best, best_metric=best_metric, best_mode=best_mode
        )
        self._saver = Saver(self._storage, self._retention)
        self._copies = HostCopies()
        self._schedule = Schedule(every_steps, every_seconds, preemption.requested)
        self._connected: peers.Peers | None = None
        self._hosts: list[str] = []
        self._attempt: int | None = None
        self._saved: set[int] = set()
        self._looked_for_old = False
        self._closed = False
        self._listens = preemption.listen()
        # A save that is under way when the interpreter ends is still finished; and SIGTERM must not
        # be kept from ending a process in which nobody looks at it any more.
        self._finalizer = weakref.finalize(self, _finish, self._saver, self._listens)

    @property
    def preempted(self) -> bool:
        """Whether a rank was asked to stop by SIGTERM, and all ranks know."""
        return self._schedule.stopping_rank is not None

    def due(self, step: int) -> bool:
        """Whether to save now. To be asked by all ranks after every step; true on all or none."""
        return self._schedule.due(_require_whole("step", step, least=0), self._peers())

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

        Raises:
            CheckpointError: The save before failed, or there is no room for this one.
            TypeError: Something could not be loaded again without running code from the file.
            Preempted: A rank was asked to stop; the checkpoint is committed.
        """
        _require_whole("step", step, least=0)
        if self._closed:
            raise CheckpointError("This CheckpointManager was closed, and saves nothing any more.")
        self._begin()
        self._join()
        self._look_for_old(step)
        if step not in self._saved:
            job = self._job(step, model, optimizer, loader, extra, epoch, metrics)
            self._saved.add(step)
            self._schedule.note(step)
            self._saver.start(job)
        if self.preempted:
            self._stop(step)
        if not self._asynchronous:
            self.wait()

    def restore(
        self, model: Any = None, optimizer: Any = None, loader: Any = None
    ) -> Restored | None:
        """Restores the newest checkpoint of which every byte is as it was written.

        To be called by all ranks, which agree on the checkpoint; any number of ranks may restore
        it. What is passed over, and why, is a warning.

        Args:
            model: As in ``save``; left alone if None, as are the others.
            optimizer: As in ``save``.
            loader: As in ``save``; takes the state by ``load_state_dict``, whose errors pass.

        Returns:
            What was restored; None if there is no checkpoint, or none that is whole.

        Raises:
            CheckpointMismatchError: The checkpoint is of another model or optimizer; neither was
                changed.
            CheckpointError: The directory cannot be read or written.
        """
        self._begin()
        self._join()
        self._looked_for_old = True
        target = Target(model=_unwrapped(model), optimizer=optimizer, loader=loader)
        restored = restore(self._storage, self._peers(), target)
        if restored is not None:
            self._schedule.note(restored.step)
        return restored

    def wait(self) -> None:
        """Waits until what is being saved is committed.

        Raises:
            CheckpointError: It failed.
        """
        try:
            self._saver.wait()
        except CheckpointError:
            self._saved.clear()
            raise

    def list(self) -> Sequence[Name]:
        """The committed checkpoints, oldest first. No other rank is asked."""
        return sorted(attempts.visible(self._storage, self._storage.names()))

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
            self._copies = HostCopies()
            if self._listens:
                preemption.stop_listening()
            if self._connected is not None:
                try:
                    self._schedule.close(self._connected)
                except Exception:  # noqa: S110 - the ranks parted before; nothing depends on it
                    pass

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self._saver.hurry()
        self._schedule.abandon()
        try:
            self.close()
        except CheckpointError as problem:
            warnings.warn(str(problem), stacklevel=2)  # The error under way says more.

    def _peers(self) -> peers.Peers:
        if self._connected is None:
            self._connected = peers.connect()
        return self._connected

    def _begin(self) -> None:
        """Takes the number of this attempt, the same on all ranks, and meets the other ranks."""
        if self._attempt is not None:
            return
        ranks = self._peers()
        shown = self._storage.shown
        answer: dict[str, Any] = {}
        cause: Exception | None = None
        if ranks.rank == 0:
            at_least = world.current_world().attempt if world.in_worker() else 0
            try:
                answer = {"attempt": attempts.begin_attempt(self._storage, at_least)}
            except Exception as error:  # Storages raise errors of many kinds.
                answer = {"error": f"{type(error).__name__}: {error}"}
                cause = error
        answer = json.loads(ranks.broadcast(json.dumps(answer).encode()))
        if "error" in answer:
            raise CheckpointError(
                f"Rank {ranks.rank} on host {peers.host()}: no checkpoint can be kept in {shown}, "
                f"since rank 0 cannot write there ({answer['error']})."
            ) from cause
        attempt = int(answer["attempt"])
        fence = f"{attempts.DIRECTORY}/attempt-{attempt}.json"
        mark = "+" if ranks.rank == 0 or self._sees(fence) else "-"
        words = peers.gather_text(ranks, mark + peers.host())
        blind = [
            f"rank {rank} (host {word[1:]})" for rank, word in enumerate(words) if word[0] != "+"
        ]
        if blind:
            raise CheckpointError(
                f"What rank 0 on host {words[0][1:]} wrote to {shown} is not seen by "
                f"{', '.join(blind[:10])}: the directory must be on storage that all hosts share."
            )
        self._hosts = [word[1:] for word in words]
        self._attempt = attempt

    def _sees(self, name: str) -> bool:
        try:
            return self._storage.exists(name)
        except Exception:  # Its own error would leave the other ranks waiting for this one.
            return False

    def _join(self) -> None:
        try:
            self._saver.join()
        except CheckpointError:
            self._saved.clear()
            raise

    def _look_for_old(self, step: int) -> None:
        """Warns when a training begins anew where another one's checkpoints are newer."""
        if self._looked_for_old or self._peers().rank:
            return
        self._looked_for_old = True
        newest = max(self.list(), default=None)
        if newest is not None and newest.step >= step:
            warnings.warn(
                f"{self._storage.shown} holds a checkpoint of step {newest.step}, and step {step} "
                "is saved without a restore() before: a later restore() would find the former, "
                "and it is kept longer. Call restore() first, or take a new directory.",
                stacklevel=3,
            )

    def _job(
        self,
        step: int,
        model: Any,
        optimizer: Any,
        loader: Any,
        extra: Any,
        epoch: int | None,
        metrics: Mapping[str, Any] | None,
    ) -> Job:
        """Copies what this rank is to write."""
        ranks = self._peers()
        model = _unwrapped(model)
        is_sharded = sharded.is_sharded(model) if self._sharded is None else self._sharded
        objects: dict[str, Any] = {}
        about: dict[str, Any] = {}
        of_model: Mapping[str, Any] = {}
        if is_sharded:
            _require_torch(ranks)
            state = sharded.state_of(model, optimizer)
            of_model = state[0]
            content, about = sharded.own_part(sharded.joined(state), ranks.rank)
            plain.require_loadable("the model's or optimizer's state", content["values"])
            objects[shards_file(ranks.rank)] = content
        elif ranks.rank == 0:
            if model is not None:
                of_model = objects[MODEL] = model.state_dict()
                plain.require_loadable("model.state_dict()", of_model)
            if optimizer is not None:
                objects[OPTIMIZER] = optimizer.state_dict()
                plain.require_loadable("optimizer.state_dict()", objects[OPTIMIZER])
        if extra is not None:
            plain.require_loadable("extra", extra)
            if ranks.rank == 0:
                objects[EXTRA] = extra
        objects[generators_file(ranks.rank)] = generators.capture()
        manifest = Manifest(
            step=step,
            epoch=None if epoch is None else _require_whole("epoch", epoch, least=0),
            attempt=self._attempt or 0,
            world_size=ranks.size,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            sharded=is_sharded,
            parameters=mismatch.parameters_of(of_model),
            optimizer_class=None if optimizer is None else type(optimizer).__name__,
            metrics=plain.plain_metrics(metrics),
            loader=None if loader is None else plain.plain_json("loader", loader.state_dict()),
            resumable=plain.plain_json("resumable state", resumable.collect()),
            files=(),
            versions={
                "sparkdl_runner": __version__,
                "python": platform.python_version(),
                "torch": _torch_version(),
            },
        )
        self._require_room(step, objects)
        self._copies.begin()
        copies = {path: self._copies.take(value) for path, value in objects.items()}
        self._copies.end()
        return Job(
            manifest=manifest,
            rank=ranks.rank,
            host=self._hosts[ranks.rank],
            objects=copies,
            shards=about,
            hosts=dict(enumerate(self._hosts)),
        )

    def _require_room(self, step: int, objects: Mapping[str, Any]) -> None:
        needed = sum(map(tensor_bytes, objects.values())) + _SPARE_BYTES
        free = self._storage.free_bytes()
        if free is not None and free < needed:
            raise CheckpointError(
                f"The checkpoint of step {step} needs {needed:,} bytes on rank "
                f"{self._peers().rank} (host {self._hosts[self._peers().rank]}), and "
                f"{self._storage.shown} has {free:,} bytes free. Free some space, keep fewer "
                "checkpoints (keep_last, keep_best), or take another directory."
            )

    def _stop(self, step: int) -> None:
        """Ends the training of all ranks, once what they saved is committed."""
        failure: CheckpointError | None = None
        try:
            self.wait()
        except CheckpointError as error:
            failure = error
        if peers.any_rank(self._peers(), failure is not None):
            raise failure or CheckpointError(
                f"Another rank could not save step {step} before the end that SIGTERM asked for; "
                "its own error says why."
            )
        rank = self._schedule.stopping_rank or 0
        raise Preempted(step, rank, self._hosts[rank])


def _finish(saver: Saver, listens: bool) -> None:
    """At the end of a manager that was not closed: finishes what is being written."""
    if listens:
        preemption.stop_listening()
    saver.hurry()
    try:
        saver.join()
    except CheckpointError as error:
        warnings.warn(str(error), stacklevel=1)


def _unwrapped(model: Any) -> Any:
    """The module without what data-parallel training and compiling put around it."""
    if model is None:
        return None
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def _require_torch(ranks: peers.Peers) -> None:
    if ranks.size > 1 and not isinstance(ranks, peers.TorchPeers):
        raise CheckpointError(
            "A sharded checkpoint needs the ranks of torch.distributed: run with backend='torch' "
            "and call init_process_group(), or leave sharded out."
        )


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _require_whole(name: str, value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; expected a whole number.")
    if value < least:
        raise ValueError(f"{name} is {value}; expected {least} or more.")
    return value

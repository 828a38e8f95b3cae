"""``DcpReader``: each rank reads and verifies the files that DCP's plan asks for."""

from __future__ import annotations

import io
import os
import warnings
from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from sparkdl_runner.base.filesystem import StorageOptions
from sparkdl_runner.checkpoint.dcp.steps import StepDirectory
from sparkdl_runner.checkpoint.directory import shards
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import Name, read_manifest
from sparkdl_runner.checkpoint.directory.reader import CheckpointReader
from sparkdl_runner.checkpoint.directory.state_files import state_in
from sparkdl_runner.checkpoint.directory.transient_errors import patiently
from sparkdl_runner.checkpoint.errors import CheckpointError, DamageError


class DcpReader(StepDirectory, StorageReader):
    """Loads by ``torch.distributed.checkpoint`` from a directory of checkpoints.

    Example::

        dcp.load(state, storage_reader=DcpReader("s3a://bucket/run-1"))

    It takes the newest checkpoint, or that of the step that ``checkpoint_id="step-N"`` names; any
    number of ranks may read it. Each file is compared with what was written before it is used; one
    that differs is named by the ``CheckpointException`` that all ranks then raise. It reads the
    sharded checkpoints of a ``CheckpointManager``, too, and writes nothing.

    Args:
        directory: As of a ``CheckpointManager``.
        storage_options: As in :func:`~sparkdl_runner.base.filesystem.open_filesystem`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The URL holds credentials.
    """

    name: Name | None = None
    """The checkpoint that was read last."""

    def __init__(
        self, directory: str | os.PathLike[str], *, storage_options: StorageOptions | None = None
    ) -> None:
        super().__init__(directory, storage_options)
        self.passed_over: set[Name] = set()
        """Checkpoints that are as if they were not there."""
        self._reader: CheckpointReader | None = None
        self._places: dict[MetadataIndex, dict[str, Any]] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint holds.

        Raises:
            CheckpointError: There is none, it is damaged, or it is not sharded.
        """
        storage, step = self._storage, self._step
        names = patiently(storage, lambda: committed(storage)) - self.passed_over
        self.name = max((one for one in names if step in (None, one.step)), default=None)
        if self.name is None:
            raise _NoCheckpointError(
                f"There is no {'other ' if self.passed_over else ''}checkpoint "
                f"{'' if step is None else f'of step {step} '}in {storage.shown}."
            )
        try:
            manifest = read_manifest(storage, self.name)
            if not manifest.sharded:
                raise CheckpointError(
                    f"{storage.shown}/{self.name} was saved whole, by rank 0: restore it by a "
                    "CheckpointManager, or read it by Checkpoint.load."
                )
            self._reader = CheckpointReader(storage, manifest)
            content = shards.metadata_of(self._reader.read(shards.METADATA))
        except DamageError as problem:
            raise self._damaged(problem) from problem
        return _metadata(content)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Takes where everything lies."""
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tells the coordinator which checkpoint this rank found."""
        return replace(plan, storage_data=str(self.name))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator: refuses to read different checkpoints."""
        found = sorted({plan.storage_data for plan in plans})
        if len(found) > 1:
            raise CheckpointError(
                f"Ranks find {' and '.join(found)} as the newest checkpoint in "
                f"{self._storage.shown}, so another training saves there. Name the step by "
                "checkpoint_id='step-N'."
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads file by file, so that no more than one rank's part is in memory beside the state.

        Raises:
            CheckpointError: A file is damaged; names it.
        """
        items: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            items[self._places[item.storage_index]["path"]].append(item)
        for path, wanted in items.items():
            content = self._load(path)
            for item in wanted:
                key = self._places[item.storage_index]["key"]
                if item.type is LoadItemType.BYTE_IO:
                    _hand_over(item, planner, content["values"][key])
                else:
                    _copy(item, planner, content["tensors"][key])
            del content
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _load(self, path: str) -> Any:
        assert self._reader is not None  # noqa: S101 - read_metadata came before
        try:
            content = self._reader.load(state_in(path))
            if content is None:
                raise DamageError(f"{path} is not in its list of files")
        except DamageError as problem:
            raise self._damaged(problem) from problem
        return content

    def _damaged(self, problem: DamageError) -> _DamagedError:
        assert self.name is not None  # noqa: S101 - it is being read
        return _DamagedError(
            f"{self._storage.shown}/{self.name} is not whole: {problem}.", self.name
        )


def load_newest(
    state_dict: dict[str, Any],
    directory: str | os.PathLike[str],
    *,
    storage_options: StorageOptions | None = None,
    **arguments: Any,
) -> int | None:
    """``torch.distributed.checkpoint.load`` from the newest checkpoint that is whole.

    To be called by all ranks. All of them pass over, with a warning, a checkpoint of which one of
    them finds a file damaged.

    Args:
        state_dict: Filled as by DCP's ``load``.
        directory: As of a ``DcpReader``.
        storage_options: The same.
        **arguments: For DCP's ``load``, such as ``process_group``.

    Returns:
        The step that was loaded; None if there is no checkpoint.

    Raises:
        CheckpointException: None is whole, or the newest whole one does not fit. The state may then
            hold a part of a damaged one.
    """
    reader = _Candidate(directory, storage_options=storage_options)
    while True:
        try:
            dcp.load(state_dict, storage_reader=reader, **arguments)
        except dcp.CheckpointException as error:
            causes = [cause for cause, _ in error.failures.values()]
            damaged = [cause for cause in causes if isinstance(cause, _DamagedError)]
            if damaged:
                warnings.warn(f"{damaged[0]} The one before is loaded.", stacklevel=2)
                reader.passed_over |= {cause.name for cause in damaged}
            elif not reader.passed_over and all(
                isinstance(one, _NoCheckpointError) for one in causes
            ):
                return None
            else:
                raise
        else:
            assert reader.name is not None  # noqa: S101 - it was read
            return reader.name.step


class _NoCheckpointError(CheckpointError):
    """There is nothing to read."""


class _DamagedError(CheckpointError):
    """A file of a checkpoint is not what was written."""

    def __init__(self, message: str, name: Name) -> None:
        super().__init__(message, name)
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


class _Candidate(DcpReader):
    """Tells what kind of error there was.

    DCP hides the kind of an error of ``read_metadata``. So the next call raises it.
    """

    _error: Exception | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint holds; nothing, if it cannot be read."""
        try:
            self._error = None
            return super().read_metadata(*args, **kwargs)
        except Exception as error:  # Storages raise errors of many kinds.
            self._error = error
            return Metadata({})

    def set_up_storage_reader(self, *args: Any, **kwargs: Any) -> None:
        """Raises what went wrong in ``read_metadata``."""
        if self._error is not None:
            raise self._error
        super().set_up_storage_reader(*args, **kwargs)


def _metadata(content: dict[str, Any]) -> Metadata:
    """DCP's own view of the blocks of a checkpoint."""
    found: dict[str, Any] = dict.fromkeys(content["values"], BytesStorageMetadata())
    places = {MetadataIndex(name): where for name, where in content["values"].items()}
    for name, tensor in content["tensors"].items():
        dtype = getattr(torch, tensor["dtype"].removeprefix("torch."))
        chunks = []
        for shard in tensor["shards"]:
            offsets = torch.Size(shard["offsets"])
            chunks.append(ChunkStorageMetadata(offsets=offsets, sizes=torch.Size(shard["sizes"])))
            places[MetadataIndex(name, offsets)] = shard
        found[name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=dtype),
            size=torch.Size(tensor["shape"]),
            chunks=chunks,
        )
    # What a CheckpointManager saved has names "model.NAME" and "optimizer.NAME".
    paths = content.get("paths", {})
    return Metadata(
        found,
        planner_data={name: tuple(paths.get(name) or name.split(".", 1)) for name in found},
        storage_data=places,
    )


def _hand_over(item: ReadItem, planner: LoadPlanner, value: Any) -> None:
    """Gives a planner a value as it takes one: pickled, which this process just did."""
    pickled = io.BytesIO()
    torch.save(value, pickled)
    pickled.seek(0)
    planner.load_bytes(item, pickled)


def _copy(item: ReadItem, planner: LoadPlanner, block: torch.Tensor) -> None:
    spans = zip(item.storage_offsets, item.lengths, strict=True)
    wanted = block[tuple(slice(begin, begin + length) for begin, length in spans)]
    target = planner.resolve_tensor(item).detach()
    target.copy_(wanted)
    planner.commit_tensor(item, target)

"""``Checkpoint.load``: reads a checkpoint in any process, without taking part in its training."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from sparkdl_runner.base.filesystem import StorageOptions
from sparkdl_runner.base.whole_number import require_whole
from sparkdl_runner.checkpoint import sharded
from sparkdl_runner.checkpoint.directory import shards
from sparkdl_runner.checkpoint.directory.listing import committed
from sparkdl_runner.checkpoint.directory.manifest import (
    EXTRA,
    MANIFEST,
    MODEL,
    Manifest,
    Name,
    read_manifest,
)
from sparkdl_runner.checkpoint.directory.reader import CheckpointReader
from sparkdl_runner.checkpoint.directory.state_files import state_in
from sparkdl_runner.checkpoint.directory.storage import Storage, directory_url, open_storage
from sparkdl_runner.checkpoint.errors import (
    CheckpointError,
    CheckpointStorageError,
    DamageError,
    UnfinishedError,
    UnreadableError,
)

# A training may remove what is read, again and again, if it keeps few and saves often.
_MOST_READS = 10
_MOST_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of one checkpoint, for evaluation, export or fine-tuning.

    Example::

        checkpoint = Checkpoint.load("/mnt/shared/run-1")
        model.load_state_dict(checkpoint.model)
    """

    step: int
    """Steps that were done."""
    epoch: int | None
    """As it was given to ``save``."""
    attempt: int
    """The attempt that saved it."""
    world_size: int
    """Of that attempt."""
    metrics: dict[str, float]
    """As they were given to ``save``."""
    model: dict[str, Any] | None
    """The model's ``state_dict``, whole, with tensors in host memory; None if none was saved."""
    extra: Any
    """As it was given to ``save``, with tensors in host memory."""
    path: str
    """The checkpoint's URL, without credentials."""

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        which: int | Literal["newest", "best"] = "newest",
        *,
        storage_options: StorageOptions | None = None,
        retry_seconds: float = 60.0,
    ) -> Checkpoint:
        """Reads a checkpoint, from any process and whether or not its training runs.

        Only reads: it writes nothing, ends no training and waits for none. What it returns is in
        memory, and each byte of it is as it was written. A training that goes on may remove what
        is being read; then the newest is looked for again.

        Args:
            directory: The directory of checkpoints, as ``CheckpointManager`` takes it.
            which: ``"newest"``: the newest that is whole. ``"best"``: the best that is whole, by
                the ``best_metric`` of the training. A number: that of this step.
            storage_options: As in :func:`~sparkdl_runner.base.filesystem.open_filesystem`.
            retry_seconds: As in ``CheckpointManager``.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``which`` is something else, or the URL holds credentials.
            CheckpointError: There is no such checkpoint, or none that is whole; or what is best is
                not known.
            CheckpointStorageError: The directory cannot be read.
        """
        if isinstance(which, str):
            if which not in ("newest", "best"):
                raise ValueError(f"which is {which!r}; expected 'newest', 'best' or a step.")
        else:
            require_whole("which", which, least=0)
        return _load(open_storage(directory_url(directory), storage_options, retry_seconds), which)


def _load(storage: Storage, which: int | str) -> Checkpoint:
    """Reads the first of the candidates that is whole.

    Raises:
        CheckpointError: None is.
    """
    tried: dict[Name, DamageError | None] = {}
    reads = 0
    while reads < _MOST_READS:
        candidates = _candidates(storage, which) - tried.keys()
        if not candidates:
            # A list that is read while one is removed and another committed may show neither.
            unfinished = [
                candidate for candidate in tried if isinstance(tried[candidate], UnfinishedError)
            ]
            if not unfinished and not _candidates(storage, which) - tried.keys():
                break
            time.sleep(storage.poll_seconds)
            for candidate in unfinished:
                del tried[candidate]
            continue
        name = _best(storage, candidates) if which == "best" else max(candidates)
        reads += 1
        try:
            checkpoint = _read(storage, name)
        except DamageError as problem:
            is_removed = not isinstance(problem, UnreadableError) and _is_removed(storage, name)
            tried[name] = None if is_removed else problem
        else:
            _warn_of(tried, storage)
            return checkpoint
    _warn_of(tried, storage)
    problems = [problem for problem in tried.values() if problem is not None]
    if any(isinstance(problem, UnreadableError) for problem in problems):
        raise CheckpointStorageError(
            f"No checkpoint could be read from {storage.shown}: {problems[-1]}. Try again once "
            "the storage answers."
        )
    raise CheckpointError(_why_none(storage, which, tried))


def _candidates(storage: Storage, which: int | str) -> set[Name]:
    return {name for name in _committed(storage) if which in ("newest", "best", name.step)}


def _warn_of(tried: Mapping[Name, DamageError | None], storage: Storage) -> None:
    for name, problem in tried.items():
        if isinstance(problem, UnfinishedError):
            with suppress(DamageError):
                read_manifest(storage, name)
                continue  # It was being written, and came too late for this load.
        if problem is not None:
            warnings.warn(
                f"The checkpoint {storage.shown}/{name} is passed over: {problem}.", stacklevel=4
            )


def _best(storage: Storage, candidates: Collection[Name]) -> Name:
    """The best by the metric that the newest of them names; the newest if none can be read.

    Raises:
        CheckpointError: None names one.
    """
    manifests: list[Manifest] = []
    for name in sorted(candidates, reverse=True):
        with suppress(DamageError):  # It is removed, or as good as none.
            manifests.append(read_manifest(storage, name))
    if not manifests:
        return max(candidates)  # Reading it raises what is wrong with it.
    decides = next((manifest for manifest in manifests if manifest.best_metric is not None), None)
    if decides is None or decides.best_metric is None:
        metrics = sorted({metric for manifest in manifests for metric in manifest.metrics})
        raise CheckpointError(
            f"No checkpoint in {storage.shown} says what is best: the training has given its "
            f"CheckpointManager no best_metric (metrics saved: {', '.join(metrics) or 'none'}). "
            "Load the newest, or a step."
        )
    metric, sign = decides.best_metric, 1 if decides.best_mode == "min" else -1
    values = {
        manifest.name: sign * manifest.metrics.get(metric, math.nan) for manifest in manifests
    }
    ranked = [name for name in values if not math.isnan(values[name])]
    if not ranked:
        raise CheckpointError(
            f"No checkpoint in {storage.shown} has a value of {metric}, by which its training says "
            "what is best. Load the newest, or a step."
        )
    return min(ranked, key=lambda name: (values[name], -name.step, -name.attempt))


def _read(storage: Storage, name: Name) -> Checkpoint:
    """Reads one checkpoint.

    Raises:
        DamageError: A file of it is gone, or is not what was written.
    """
    try:
        manifest = read_manifest(storage, name)
    except UnreadableError:
        raise
    except DamageError as problem:
        raise UnfinishedError(str(problem)) from problem
    reader = CheckpointReader(storage, manifest)
    return Checkpoint(
        step=manifest.step,
        epoch=manifest.epoch,
        attempt=manifest.attempt,
        world_size=manifest.world_size,
        metrics=manifest.metrics,
        model=_sharded_model(reader) if manifest.sharded else reader.load(MODEL),
        extra=reader.load(EXTRA),
        path=f"{storage.shown}/{name}",
    )


def _sharded_model(reader: CheckpointReader) -> dict[str, Any]:
    """The whole model, put together from the parts that ranks saved."""
    import torch

    metadata = shards.metadata_of(reader.read(shards.METADATA))
    tensors = sharded.model_part(metadata["tensors"])
    values = sharded.model_part(metadata["values"])
    state: dict[str, Any] = {
        name: torch.empty(
            tensor["shape"], dtype=getattr(torch, tensor["dtype"].removeprefix("torch."))
        )
        for name, tensor in tensors.items()
    }
    places = [(name, shard) for name, tensor in tensors.items() for shard in tensor["shards"]]
    # File by file, so that no more than one of them is in memory beside the model.
    for path in sorted(
        {part["path"] for part in [*values.values(), *(shard for _, shard in places)]}
    ):
        content = reader.load(state_in(path))
        if content is None:
            raise DamageError(f"{path} is not in its list of files")
        for name, shard in places:
            if shard["path"] == path:
                ends = map(sum, zip(shard["offsets"], shard["sizes"], strict=True))
                block = tuple(map(slice, shard["offsets"], ends))
                state[name][block] = content["tensors"][shard["key"]]
        for name, where in values.items():
            if where["path"] == path:
                state[name] = content["values"][where["key"]]
    return state


def _committed(storage: Storage) -> set[Name]:
    try:
        return committed(storage)
    except Exception as error:  # Storages raise errors of many kinds.
        raise CheckpointStorageError(
            f"The checkpoints in {storage.shown} cannot be listed "
            f"({type(error).__name__}: {error})."
        ) from error


def _is_removed(storage: Storage, name: Name) -> bool:
    """Whether the training has removed a checkpoint: its manifest goes first."""
    try:
        return not storage.exists(f"{name}/{MANIFEST}")
    except Exception:  # Then it is not known to be removed.
        return False


def _why_none(storage: Storage, which: int | str, tried: Iterable[Name]) -> str:
    there = _committed(storage)
    tried = set(tried)
    if tried - there:
        what = f"The checkpoint of step {which}" if isinstance(which, int) else "Each checkpoint"
        return (
            f"{what} in {storage.shown} was removed by its training while it was read. Load the "
            "newest, or let the training keep more of them (keep_last)."
        )
    if tried:
        what = f"of step {which} " if isinstance(which, int) else ""
        return (
            f"No checkpoint {what}in {storage.shown} is whole; the warnings before say what is "
            "wrong with each."
        )
    steps = sorted({name.step for name in there})
    if steps:
        more = f", … (the newest is {steps[-1]})" if len(steps) > _MOST_NAMED else ""
        listed = ", ".join(map(str, steps[:_MOST_NAMED])) + more
        return f"There is no checkpoint of step {which} in {storage.shown}; there are of {listed}."
    folders = sorted({name.partition("/step-")[0] for name in storage.names() if "/step-" in name})
    if folders:
        more = ", …" if len(folders) > _MOST_NAMED else ""
        return (
            f"There is no checkpoint in {storage.shown}, but in folders of it: name one of "
            f"{', '.join(folders[:_MOST_NAMED])}{more}."
        )
    return f"There is no checkpoint in {storage.shown}."

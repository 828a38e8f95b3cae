"""What a rank is to write of one step: gathered, and copied while training waits."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sparkdl_runner import __version__
from sparkdl_runner.checkpoint import generators, mismatch, sharded
from sparkdl_runner.checkpoint.arguments import require_whole
from sparkdl_runner.checkpoint.directory import plain_values as plain
from sparkdl_runner.checkpoint.directory.manifest import (
    EXTRA,
    MODEL,
    OPTIMIZER,
    Manifest,
    generators_state,
)
from sparkdl_runner.checkpoint.directory.shards import shards_state
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.directory.tensor_files import SUFFIX, require_savable
from sparkdl_runner.checkpoint.errors import CheckpointError, CheckpointStorageError
from sparkdl_runner.checkpoint.peers import Peers, TorchPeers
from sparkdl_runner.checkpoint.save.attempt_start import Attempt
from sparkdl_runner.checkpoint.save.commit import Job
from sparkdl_runner.checkpoint.save.host_copies import HostCopies, tensor_bytes
from sparkdl_runner.hooks import resumable
from sparkdl_runner.unwrapping import is_sharded

# What a save needs beside the tensors: names, lists, the states of generators.
_SPARE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Given:
    """What ``save`` was given, as it is described there; the model without what wraps it."""

    step: int
    model: Any
    optimizer: Any
    loader: Any
    extra: Any
    epoch: int | None
    metrics: Mapping[str, Any] | None


class Snapshots:
    """Takes snapshots, one after the other; one is gone with the next.

    Args:
        storage: Where they are to be written.
        in_shards: Whether each rank writes its part of the model; None goes by the model.
    """

    def __init__(self, storage: Storage, in_shards: bool | None) -> None:
        self._storage = storage
        self._in_shards = in_shards
        self._copies = HostCopies()

    def take(self, given: Given, attempt: Attempt) -> Job:
        """Copies what this rank is to write.

        Raises:
            CheckpointStorageError: There is no room for it.
            CheckpointError: The ranks cannot save in shards.
            TypeError: Something could not be loaded again without running code from the file.
        """
        rank = attempt.peers.rank
        in_shards = self._in_shards
        if in_shards is None:
            in_shards = is_sharded(given.model)
        part = _part_of(given, attempt.peers, in_shards)
        manifest = _manifest(given, attempt, part, in_shards)
        self._require_room(given.step, part.objects, attempt)
        self._copies.begin()
        copies = {state: self._copies.take(value) for state, value in part.objects.items()}
        self._copies.end()
        return Job(
            manifest=manifest,
            rank=rank,
            host=attempt.host,
            objects={f"{state}{SUFFIX}": value for state, value in copies.items()},
            shards=part.shards,
            hosts=dict(enumerate(attempt.hosts)),
        )

    def let_go(self) -> None:
        """Gives up the memory that the last snapshot took."""
        self._copies = HostCopies()

    def _require_room(self, step: int, objects: Mapping[str, Any], attempt: Attempt) -> None:
        needed = sum(map(tensor_bytes, objects.values())) + _SPARE_BYTES
        free = self._storage.free_bytes()
        if free is not None and free < needed:
            raise CheckpointStorageError(
                f"The checkpoint of step {step} needs {needed:,} bytes on rank "
                f"{attempt.peers.rank} (host {attempt.host}), and "
                f"{self._storage.shown} has {free:,} bytes free. Free some space, keep fewer "
                "checkpoints (keep_last, keep_best), or take another directory."
            )


@dataclass(kw_only=True)
class _Part:
    """What this rank is to write, not copied yet."""

    objects: dict[str, Any] = field(default_factory=dict)
    """By the name of the state."""
    shards: dict[str, Any] = field(default_factory=dict)
    """See ``Job``."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The model's state, on ranks that write of it."""


def _part_of(given: Given, peers: Peers, in_shards: bool) -> _Part:
    part = _Part()
    objects = part.objects
    if in_shards:
        _require_torch(peers)
        state = sharded.state_of(given.model, given.optimizer)
        part.model = state[0]
        content, part.shards = sharded.own_part(sharded.joined(state), peers.rank)
        require_savable("the model's or optimizer's state", content["values"])
        objects[shards_state(peers.rank)] = content
    elif peers.rank == 0:
        if given.model is not None:
            part.model = objects[MODEL] = given.model.state_dict()
            require_savable("model.state_dict()", part.model)
        if given.optimizer is not None:
            objects[OPTIMIZER] = given.optimizer.state_dict()
            require_savable("optimizer.state_dict()", objects[OPTIMIZER])
    if given.extra is not None:
        require_savable("extra", given.extra)
        if peers.rank == 0:
            objects[EXTRA] = given.extra
    objects[generators_state(peers.rank)] = generators.capture()
    return part


def _manifest(given: Given, attempt: Attempt, part: _Part, in_shards: bool) -> Manifest:
    epoch, optimizer, loader = given.epoch, given.optimizer, given.loader
    return Manifest(
        step=given.step,
        epoch=None if epoch is None else require_whole("epoch", epoch, least=0),
        attempt=attempt.number,
        world_size=attempt.peers.size,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sharded=in_shards,
        parameters=mismatch.parameters_of(part.model),
        optimizer_class=None if optimizer is None else type(optimizer).__name__,
        metrics=plain.plain_metrics(given.metrics),
        loader=None if loader is None else plain.plain_json("loader", loader.state_dict()),
        resumable=plain.plain_json("resumable state", resumable.collect()),
        files=(),
        versions={
            "sparkdl_runner": __version__,
            "python": platform.python_version(),
            "torch": _torch_version(),
        },
    )


def _require_torch(peers: Peers) -> None:
    if peers.size > 1 and not isinstance(peers, TorchPeers):
        raise CheckpointError(
            "A sharded checkpoint needs the ranks of torch.distributed: run with backend='torch' "
            "and call init_process_group(), or leave sharded out."
        )


def _torch_version() -> str:
    import torch

    return str(torch.__version__)

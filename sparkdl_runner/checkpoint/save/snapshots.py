"""Gathers and copies the states that a rank writes of one step, while training waits."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sparkdl_runner.base.version import __version__
from sparkdl_runner.base.whole_number import require_whole
from sparkdl_runner.checkpoint import generators, mismatch, sharded
from sparkdl_runner.checkpoint.directory.manifest import (
    EXTRA,
    MODEL,
    OPTIMIZER,
    Manifest,
    generators_state,
)
from sparkdl_runner.checkpoint.directory.shards import shards_state
from sparkdl_runner.checkpoint.directory.state_files import SUFFIX, FlatState, flatten
from sparkdl_runner.checkpoint.directory.storage import Storage
from sparkdl_runner.checkpoint.errors import CheckpointError, CheckpointStorageError
from sparkdl_runner.checkpoint.peers import Peers, TorchPeers
from sparkdl_runner.checkpoint.save.attempt import WriterFence
from sparkdl_runner.checkpoint.save.commit import SaveRequest
from sparkdl_runner.checkpoint.save.host_copies import HostCopies
from sparkdl_runner.checkpoint.save.ownership import Ownership
from sparkdl_runner.checkpoint.save.retention import Retention
from sparkdl_runner.checkpoint.stateful import Stateful, state_name
from sparkdl_runner.rank import resumable

# Bytes beside the tensors: names, lists, the states of generators.
_SPARE_BYTES = 1 << 20


class Snapshots:
    """Takes snapshots, one after the other; one is gone with the next.

    Args:
        storage: Where they are to be written.
        in_shards: Whether each rank writes its part of the model; None goes by the model.
        retention: Says which metric makes a checkpoint the best.
    """

    def __init__(self, storage: Storage, in_shards: bool | None, retention: Retention) -> None:
        self._storage = storage
        self._retention = retention
        self._parts = Ownership(in_shards)
        self._copies = HostCopies()

    def take(
        self,
        attempt: WriterFence,
        *,
        step: int,
        given: Stateful,
        extra: Any,
        epoch: int | None,
        metrics: Mapping[str, Any] | None,
    ) -> SaveRequest:
        """Copies what this rank is to write; the arguments are those of ``save``.

        Raises:
            CheckpointStorageError: There is no room for it.
            CheckpointError: The ranks cannot save in shards.
            TypeError: Something could not be loaded again without running code from the file.
            ValueError: There are metrics, and not the one that says what is best.
        """
        self._retention.require_metric(metrics)
        peers, model, optimizer = attempt.peers, given.model, given.optimizer
        in_shards = self._parts.differ(peers, model, optimizer)
        of_model: Mapping[str, Any] = {}
        states: dict[str, tuple[str, Any]] = {}
        shards: dict[str, Any] = {}
        if in_shards:
            _require_torch(peers)
            whole = sharded.state_of(model, optimizer)
            own, of_several = sharded.keys_of(whole, peers.size)
            own |= self._parts.own_of(peers, of_several)
            content, shards = sharded.own_part(whole, peers.rank, own)
            states[shards_state(peers.rank)] = "the model's or optimizer's state", content
        elif peers.rank == 0:
            if model is not None:
                of_model = model.state_dict()
                states[MODEL] = "model.state_dict()", of_model
            if optimizer is not None:
                states[OPTIMIZER] = "optimizer.state_dict()", optimizer.state_dict()
        shared = {EXTRA: ("extra", extra)} if extra is not None else {}
        for name, stateful in given.others.items():
            shared[state_name(name)] = f"{name}.state_dict()", stateful.state_dict()
        if peers.rank == 0:
            states |= shared
        else:
            for where, value in shared.values():
                _require_savable(where, value)
        states[generators_state(peers.rank)] = "generators", generators.capture()
        manifest = Manifest(
            step=step,
            epoch=None if epoch is None else require_whole("epoch", epoch, least=0),
            attempt=attempt.number,
            world_size=peers.size,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            sharded=in_shards,
            parameters=mismatch.parameters_of(of_model),
            optimizer_class=mismatch.class_of(optimizer),
            metrics=_plain_metrics(metrics),
            loader=None
            if given.loader is None
            else _plain_json("loader", given.loader.state_dict()),
            resumable=_plain_json("resumable state", resumable.collect()),
            files=(),
            best_metric=self._retention.best_metric,
            best_mode=self._retention.best_mode,
            versions=versions(),
        )
        job = SaveRequest(
            manifest=manifest,
            rank=peers.rank,
            hosts=attempt.hosts,
            token=attempt.token,
            states={f"{name}{SUFFIX}": state for name, state in self._copied(states).items()},
            shards=shards,
        )
        self._require_room(job)
        return job

    def let_go(self) -> None:
        """Gives up the memory that the last snapshot took."""
        self._copies = HostCopies()
        self._parts.let_go()

    def _copied(self, states: Mapping[str, tuple[str, Any]]) -> dict[str, FlatState]:
        self._copies.begin()
        try:
            return {
                name: flatten(where, value, self._copies.copy)
                for name, (where, value) in states.items()
            }
        finally:
            self._copies.end()

    def _require_room(self, job: SaveRequest) -> None:
        needed = self._copies.size_bytes + _SPARE_BYTES
        free = self._storage.free_bytes()
        if free is not None and free < needed:
            raise CheckpointStorageError(
                f"The checkpoint of step {job.manifest.step} needs {needed:,} bytes on rank "
                f"{job.rank} (host {job.host}), and {self._storage.shown} has {free:,} bytes free. "
                "Free some space, keep fewer checkpoints (keep_last, keep_best), or take another "
                "directory."
            )


def _require_torch(peers: Peers) -> None:
    if peers.size > 1 and not isinstance(peers, TorchPeers):
        raise CheckpointError(
            "A sharded checkpoint needs the ranks of torch.distributed: run with backend='torch' "
            "and call init_process_group(), or leave sharded out."
        )


def _require_savable(where: str, value: Any) -> None:
    import torch

    flatten(where, value, lambda tensor: torch.empty(0))


def versions() -> dict[str, str]:
    """What saves, for the manifest."""
    import torch

    return {
        "sparkdl_runner": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _plain_metrics(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    plain = {}
    for name, value in (metrics or {}).items():
        try:
            plain[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"metrics[{name!r}] is {value!r}; expected one number.") from None
    return plain


def _plain_json(where: str, value: Any) -> Any:
    """``value`` as it comes back from JSON; TypeError if that is something else, or nothing."""
    try:
        plain = json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{where} cannot be written as JSON: {error}.") from None
    if not _has_text_keys(value):
        raise TypeError(
            f"{where} would come back from JSON as something else: it may hold dicts with text as "
            "keys, lists, text, numbers, booleans and None."
        )
    return plain


def _has_text_keys(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _has_text_keys(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_text_keys, value))
